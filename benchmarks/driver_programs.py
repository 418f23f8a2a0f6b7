"""Calls of the CUDA backend on the software driver: `driver_programs.py calls | pair cuda | pair emulated` prints JSON.

Values are nanoseconds of the calling thread's processor time; the threads of the driver's streams do not count. Calls
come in bursts, so that events are reused as in a program that waits for its work now and then.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from threading import Event
from typing import Any

from allocator_programs import calls, timed
from measure import REPETITIONS

import forebay

BURST, BURSTS = 100, 20  # calls until the measurement waits for the stream, and how often
PAIRS = 20_000
SIZE = 1 << 10


def calls_of_both() -> dict[str, dict[str, float]]:
    """Return, for each call and with each current context, the medians of cuda-bindings and of forebay."""
    from cuda.bindings import driver as api

    from forebay.backends.nvidia.driver import CudaDriver

    port = CudaDriver().open(0)
    port.queue()  # the default stream
    queue, other = port.queue(), port.queue()
    context = port.context.handle
    api.cuCtxSetCurrent(context)
    memory, elsewhere, stream = port.reserve(4 << 20), port.reserve(4 << 20), api.CUstream(queue.handle)
    quick, timing = (api.cuEventCreate(flags)[1] for flags in (api.CUevent_flags.CU_EVENT_DISABLE_TIMING, 0))
    waited = api.cuEventCreate(api.CUevent_flags.CU_EVENT_DISABLE_TIMING)[1]
    gate, tick = Event(), 0

    def raw_signal() -> None:
        api.cuEventRecord(quick, stream)
        api.cuEventQuery(quick)

    def signal() -> None:
        queue.signal()
        queue.reached()

    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "query a stream": (lambda: api.cuStreamQuery(stream), queue.idle),
        "record and query an event": (raw_signal, signal),
        "record an event with its time": (lambda: api.cuEventRecord(timing, stream), queue.mark),
        "wait for an event of another stream": (
            lambda: api.cuStreamWaitEvent(stream, waited, 0),
            lambda: queue.wait_for(other, tick),
        ),
        "copy 64 bytes": (
            lambda: api.cuMemcpyAsync(memory, elsewhere, 64, stream),
            lambda: queue.copy(memory, elsewhere, 64),
        ),
        "fill 64 bytes": (lambda: api.cuMemsetD8Async(memory, 0, 64, stream), lambda: queue.fill(memory, 0, 64)),
    }
    second = api.cuDevicePrimaryCtxRetain(api.cuDeviceGet(1)[1])[1]

    def in_context(function: Callable[[], Any]) -> Callable[[], None]:
        def call() -> None:
            api.cuCtxPushCurrent(context)
            function()
            api.cuCtxPopCurrent()

        return call

    def nanoseconds(function: Callable[[], Any]) -> float:
        nonlocal tick
        spent = 0
        for _ in range(BURSTS):
            gate.clear()
            other.call(gate.wait)  # until then, no wait for the other stream has an end
            tick = other.signal()
            api.cuCtxPushCurrent(context)
            api.cuEventRecord(waited, api.CUstream(other.handle))
            api.cuCtxPopCurrent()
            start = time.thread_time_ns()
            for _ in range(BURST):
                function()
            spent += time.thread_time_ns() - start
            gate.set()
            queue.wait(queue.signal())
            other.wait(tick)
        return spent / BURST / BURSTS

    figures: dict[str, dict[str, float]] = {}
    for name, (raw, ours) in pairs.items():
        figures[name] = {}
        for current, handle in (("", context), ("of another device, ", second)):
            api.cuCtxSetCurrent(handle)
            sides = {"raw": in_context(raw) if current else raw, "ours": ours}
            runs = [{side: nanoseconds(function) for side, function in sides.items()} for _ in range(REPETITIONS)]
            for side in sides:
                figures[name][current + side] = median(run[side] for run in runs)
    api.cuDevicePrimaryCtxRelease(1)
    port.close()
    return figures


def pair(side: str) -> dict[str, float]:
    """Return the time of an allocation from the cache and its free, and the calls of the driver in 1,000 of them."""
    software = ctypes.CDLL("libcuda.so.1")
    software.softcuda_calls.restype = ctypes.c_uint64
    with forebay.emulate("cuda") if side == "emulated" else nullcontext():
        memory = forebay.cuda.memory

        def by_address() -> None:
            memory.caching_allocator_delete(memory.caching_allocator_alloc(SIZE))

        def by_object() -> None:
            forebay.allocate(SIZE, "cuda").free()

        results = {"by address": timed(calls(by_address), PAIRS), "by object": timed(calls(by_object), PAIRS)}
        before = software.softcuda_calls(b"")
        for _ in range(1_000):
            by_address()
            by_object()
        results["driver calls"] = software.softcuda_calls(b"") - before
    return results


if __name__ == "__main__":
    print(json.dumps(calls_of_both() if sys.argv[1] == "calls" else pair(sys.argv[2])))
