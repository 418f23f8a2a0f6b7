"""A long program that uses every part of a port, and counts the failures that it sees."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from forebay.backends.metal.driver import MetalDriver
from forebay.errors import ForebayError
from forebay.spi import Draw, StridedCopy

MIB = 1 << 20
KEPT = {"MTLDevice", "MTLCaptureManager", "NSProcessInfo"}  # objects of the stand-in that exist as long as the process
SHADER = """
#include <metal_stdlib>
using namespace metal;
kernel void twice(device float* x, constant long& count, uint index [[thread_position_in_grid]]) {
  if (long(index) < count) x[index] = 2 * x[index];
}
"""


class Scenario:
    """One run. `failures` has the errors that its steps raised."""

    def __init__(self) -> None:
        self.failures: list[ForebayError] = []
        self.read = b""

    def step(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a step; return None if it raises an error of forebay."""
        try:
            return function(*arguments)
        except ForebayError as error:
            self.failures.append(error)
            return None

    def run(self) -> Scenario:
        port = self.step(MetalDriver().open, 0)
        if port is not None:
            try:
                self._use(port)
            finally:
                try:
                    port.close()
                except KeyboardInterrupt:
                    port.close()
                    raise
        return self

    def _use(self, port: Any) -> None:
        step = self.step
        shared, private, pinned = step(port.reserve, MIB), step(port.reserve_private, MIB), step(port.pin, MIB)
        first, second = step(port.queue), step(port.queue)
        shader = step(port.compile_shader, SHADER)
        if None not in (shared, private, pinned, first, second, shader):
            self._work(port, shared, private, pinned, first, second, shader)
        step(port.memory_info)
        for release, address in ((port.release, shared), (port.release, private), (port.unpin, pinned)):
            if address is not None:
                step(release, address)

    def _work(self, port, shared, private, pinned, first, second, shader) -> None:
        step, seen = self.step, list[int]()
        host = ctypes.create_string_buffer(b"abcdefgh" * 512, 4096)
        start = step(first.mark)
        step(first.fill, shared, 7, 4096)
        step(first.copy, shared, ctypes.addressof(host), 4096)
        step(first.copy, private, shared, 4096)
        step(first.copy, private + 5001, shared + 3, 1001)
        step(first.fill, private + 7001, 9, 33)
        step(first.copy, shared + 4096, private + 5001, 4096)
        step(first.draw, Draw("normal", "float32", shared + 8192, 1000, (), 7, 0, 256))
        step(first.draw, Draw("cauchy", "float32", private + 8192, 1000, (), 7, 0, 256, (0.0, 1.0, 0.0)))
        step(first.copy_strided, StridedCopy((16, 16), shared + 16384, (64, 4), "", 4, shared, (4, 64)))
        step(first.copy_strided, StridedCopy((16,), shared + 20480, (2,), "float16", 2, shared, (4,), "float32"))
        step(first.call, lambda: seen.append(1))
        twice = step(shader.shader, "twice")
        if twice is not None:
            count = (100).to_bytes(8, "little")
            step(twice.launch, first, ((shared + 8192, 400), count), (100, 1, 1), (100, 1, 1))
        end = step(first.mark)
        tick = step(first.signal)
        if tick is not None:
            step(second.wait_for, first, tick)
        step(second.copy, pinned, shared, 24576)
        step(second.call_native, ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value, 0)
        for queue in (first, second):
            done = step(queue.signal)
            if done is not None:
                step(queue.wait, done)
                step(queue.wait, done)  # a failure was reported by the wait before
            step(queue.reached)
            step(queue.idle)
        if start is not None and end is not None:
            step(first.elapsed_ms, start, end)
        self.read = ctypes.string_at(pinned, 24576)
        if not self.failures:
            assert seen == [1]
