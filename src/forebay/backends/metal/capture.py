"""Capture of Metal queues. A launch encodes the recorded work again.

Metal's own recordings, indirect command buffers, hold dispatches of kernels only: no blits, no events and no functions
of the host. Conditions and loops need values that the device computes, so that a thread of the queue executes such a
graph on a queue of its own, and reads them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial

from forebay.backends.metal.queue import MetalQueue
from forebay.errors import Unsupported
from forebay.spi import CapturedNode, Draw, Queue, StridedCopy
from forebay.vendor import (
    CapturedMark,
    CapturedMemory,
    CaptureRecorder,
    MemorySource,
    integer_of,
    is_valid_draw,
    pack_draw,
    recorded_work,
    wait_in_capture,
)

__all__ = ["CapturingQueue", "MetalCapturedGraph"]

_CONDITIONAL = {"if", "while", "set", "again"}


class MetalCapturedGraph(CaptureRecorder[MetalQueue]):
    """A captured graph of Metal queues."""

    def __init__(self, first: MetalQueue, mode: str, queues: MutableMapping[int, int]) -> None:
        self._classes: dict[int, type[MetalQueue]] = {}  # of the queues when they are not captured, by handle
        self._last: MetalQueue | None = None  # the queue of the last launch
        self.ports: set[MemorySource] = set()  # of the captured queues
        self._inner: list[CapturedMemory[MemorySource]] = []  # of the graphs that are parts of this one
        super().__init__(first, mode, queues)

    def attach(self, queue: MetalQueue) -> None:
        queue.recording = self
        self.ports.add(queue.owner)
        self._classes[queue.handle] = queue.__class__
        queue.__class__ = CapturingQueue  # so that a queue outside a capture need not test for one

    def detach(self, queue: MetalQueue) -> None:
        queue.__class__ = self._classes[queue.handle]
        del queue.recording

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


class CapturingQueue(MetalQueue):
    """Class of a Metal queue during a capture. Ticks from before the capture can still be queried and waited for."""

    @property
    def capture(self) -> MetalCapturedGraph | None:
        return self.recording

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        self.recording.add(self, "copy", **recorded_work.copy(dst, src, nbytes))

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        self.recording.add(self, "fill", **recorded_work.fill(dst, byte, nbytes))

    def draw(self, draw: Draw) -> None:
        if not is_valid_draw(pack_draw(draw._replace(seed=0, offset=0))):
            raise ValueError(f"invalid draw: {draw}")
        self.recording.add(self, "draw", **recorded_work.draw(draw))

    def copy_strided(self, copy: StridedCopy) -> None:
        self.recording.add(self, "strided", **recorded_work.copy_strided(copy))

    def call(self, function: Callable[[], object]) -> None:
        self.recording.add(self, "call", **recorded_work.call(function))

    def call_native(self, function: int, argument: int) -> None:
        self.recording.add(self, "native", **recorded_work.native(function, argument))

    def signal(self) -> int:
        return self.recording.signal(self)

    def mark(self) -> CapturedMark:  # type: ignore[override]  # another implementation of `spi.Mark`
        return CapturedMark(self.recording.signal(self))

    def idle(self) -> bool:
        raise self.recording.forbidden(self, "idle")

    def wait(self, tick: int) -> None:
        self.check_not_captured(integer_of(tick, "tick"))
        super().wait(tick)

    def wait_for(self, other: object, tick: int) -> None:
        if not isinstance(other, MetalQueue):
            raise TypeError(f"a Metal queue can wait only for Metal queues, not for a {type(other).__name__}")
        wait_in_capture(self, other, integer_of(tick, "tick"))

    def close(self, timeout: float | None = None) -> bool:
        self.abandon_capture()
        return self.close(timeout)  # abandon_capture() has restored the class


MetalQueue._recording_class = MetalCapturedGraph  # noqa: SLF001 - queues create recordings, whose module imports theirs
