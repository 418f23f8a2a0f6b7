"""Capture of Metal queues. A launch encodes the recorded work again.

Metal's own recordings, indirect command buffers, hold dispatches of kernels only: no blits, no events and no functions
of the host. Conditions and loops need values that the device computes, so that a thread of the queue executes such a
graph on a queue of its own, and reads them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

from forebay.backends.metal.queue import MetalQueue
from forebay.errors import Unsupported
from forebay.spi import CapturedNode, Queue
from forebay.vendor import CapturedMemory, CaptureRecorder, MemorySource, is_valid_draw, recorded_work

__all__ = ["MetalCapturedGraph"]

_CONDITIONAL = {"if", "while", "set", "again"}


class MetalCapturedGraph(CaptureRecorder[MetalQueue]):
    """A captured graph of Metal queues."""

    def __init__(self, first: MetalQueue, mode: str, queues: MutableMapping[int, int]) -> None:
        self._last: MetalQueue | None = None  # the queue of the last launch
        self.ports: set[MemorySource] = set()  # of the captured queues
        self._inner: list[CapturedMemory[MemorySource]] = []  # of the graphs that are parts of this one
        super().__init__(first, mode, queues)

    def attach(self, queue: MetalQueue) -> None:
        self.ports.add(queue.owner)
        super().attach(queue)

    def record(self, queue: MetalQueue, op: str, details: Mapping[str, Any]) -> None:
        if op == "draw" and not is_valid_draw(details["packed"]):
            raise ValueError(f"invalid draw: {details['draw']}")
        super().record(queue, op, details)

    def add_child_graph(
        self, queue: MetalQueue, other: CaptureRecorder[MetalQueue], sources: Sequence[tuple[int, int]]
    ) -> None:
        super().add_child_graph(queue, other, sources)
        if isinstance(other, MetalCapturedGraph):
            self.ports |= other.ports
            self._inner.append(other._memory)  # noqa: SLF001 - another instance

    def finished(self) -> None:
        self._memory = CapturedMemory(self.ports, self.work, self.watch.releases, self._inner)

    def launch(self, queue: Queue, sources: Sequence[tuple[int, int]] = ()) -> None:
        if not isinstance(queue, MetalQueue):
            raise TypeError(f"a graph of Metal queues is launched on a Metal queue, not on a {type(queue).__name__}")
        if self.add_to_capture(queue, sources):
            return
        queue.check_usable()
        with self.lock:
            self._memory.check(queue)
            if self._last is not None and self._last is not queue and not self._last.closed:
                queue.wait_for(self._last, self._last.signal())
            self._last = queue
            for part in recorded_work.launch_parts(self.work):
                if callable(part):
                    part(queue)
                elif any(self.work[number].op in _CONDITIONAL for number in part):
                    queue.call(partial(self._run_conditions, queue, part, tuple(sources)))
                else:
                    for number in part:
                        _queue_node(queue, self.work[number], sources)

    def _run_conditions(self, queue: MetalQueue, part: range, sources: Sequence[tuple[int, int]]) -> None:
        """Execute nodes with conditions, on the thread of a queue."""
        inner = queue.inner_queue()

        def byte_at(address: int) -> int:
            inner.wait(inner.signal())
            return _byte(inner, address)

        for node in recorded_work.executed_nodes(self.work, byte_at, part):
            _queue_node(inner, node, sources)
        inner.wait(inner.signal())


def _queue_node(queue: MetalQueue, node: CapturedNode, sources: Sequence[tuple[int, int]]) -> None:
    details = node.details
    match node.op:
        case "copy":
            queue.copy(details["to"], details["source"], details["nbytes"])
        case "fill":
            queue.fill(details["to"], details["byte"], details["nbytes"])
        case "draw":
            queue.draw(recorded_work.reseeded_draw(details, sources))
        case "strided":
            queue.copy_strided(details["copy"])
        case "call":
            queue.call(details["function"])
        case "native":
            queue.call_native(details["function"], details["argument"])
        case _:
            raise Unsupported(f"a Metal queue cannot execute a node {node.op!r}", ability="Captures")


def _byte(queue: MetalQueue, address: int) -> int:
    """Return a byte of memory whose work is complete."""
    region = queue.owner.regions.find(address)
    if region is None or region.shared:
        return ctypes.string_at(address, 1)[0]
    target = ctypes.create_string_buffer(1)
    queue.copy(ctypes.addressof(target), address, 1)
    queue.wait(queue.signal())
    return target.raw[0]
