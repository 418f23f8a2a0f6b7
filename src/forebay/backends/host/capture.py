"""Capture of host queues; a captured graph is launched as native programs and the Python calls between them."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence

from forebay import _core
from forebay.backends.common import recorded_work
from forebay.backends.common.arguments import integer_of
from forebay.backends.common.capture_recorder import CapturedMark, CaptureRecorder, wait_in_capture
from forebay.backends.common.captured_memory import CapturedMemory
from forebay.backends.common.draw_encoding import pack_draw
from forebay.backends.host.program import AtLaunch, Piece, ProgramTemplate, pieces_of, reseeded
from forebay.backends.host.queue import HostQueue, Owner
from forebay.spi import Draw, Queue, StridedCopy

__all__ = ["CapturingQueue", "HostCapturedGraph"]

_native = _core.Queue


class HostCapturedGraph(CaptureRecorder[HostQueue]):
    """A captured graph of host queues."""

    def __init__(self, first: HostQueue, mode: str, queues: MutableMapping[int, int]) -> None:
        self._classes: dict[int, type[HostQueue]] = {}  # of the queues when they are not captured, by handle
        self._pieces: list[Piece] = []
        self.memory: CapturedMemory[Owner] = CapturedMemory((), ())  # until the capture is complete
        self._last: HostQueue | None = None  # the queue of the last launch
        self._inner: list[CapturedMemory[Owner]] = []  # of the graphs that are parts of this one
        super().__init__(first, mode, queues)

    def attach(self, queue: HostQueue) -> None:
        queue.recording = self
        self._classes[queue.handle] = queue.__class__
        queue.__class__ = CapturingQueue  # so that a queue outside a capture need not test for one

    def detach(self, queue: HostQueue) -> None:
        queue.__class__ = self._classes[queue.handle]
        del queue.recording

    def add_child_graph(
        self, queue: HostQueue, other: CaptureRecorder[HostQueue], sources: Sequence[tuple[int, int]]
    ) -> None:
        super().add_child_graph(queue, other, sources)
        if isinstance(other, HostCapturedGraph):
            self._inner.append(other.memory)

    def finished(self) -> None:
        self._pieces = pieces_of(self.work)
        self.memory = CapturedMemory(self._first.owner.peers(), self.work, self.watch.releases, self._inner)

    def launch(self, queue: Queue, sources: Sequence[tuple[int, int]] = ()) -> None:
        if not isinstance(queue, HostQueue):
            raise TypeError(f"a graph of host queues is launched on a host queue, not on a {type(queue).__name__}")
        if self.add_to_capture(queue, sources):
            return
        with self.lock:
            self._check_memory(queue)
            pieces = [
                reseeded(piece, sources) if isinstance(piece, ProgramTemplate) else piece for piece in self._pieces
            ]
            queue.ensure_programs_backed(piece for piece in pieces if isinstance(piece, bytes))
            if self._last is not None and self._last is not queue and not self._last.closed:
                _native.wait_for(queue, self._last, _native.signal(self._last))
            self._last = queue
            for port in self.memory.ports:
                if port is not queue.owner:
                    port.visitors.add(queue)
            for piece in pieces:
                if isinstance(piece, bytes):
                    while not queue.run_program_at(piece, self.memory.logs, self.memory.checked_at):
                        self._check_memory(queue)
                elif isinstance(piece, AtLaunch):
                    piece.function(queue)
                else:
                    queue.call(piece)

    def _check_memory(self, queue: HostQueue) -> None:
        """Raise DeviceError if the graph uses memory that was released."""
        self.memory.check(queue)


class CapturingQueue(HostQueue):
    """Class of a host queue during a capture. Ticks from before the capture can still be queried and waited for."""

    __slots__ = ()

    @property
    def capture(self) -> HostCapturedGraph | None:
        return self.recording

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        self.recording.add(self, "copy", **recorded_work.copy(dst, src, nbytes))

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        self.recording.add(self, "fill", **recorded_work.fill(dst, byte, nbytes))

    def draw(self, draw: Draw) -> None:
        self.recording.add(self, "draw", **recorded_work.draw(draw), packed=pack_draw(draw._replace(seed=0, offset=0)))

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
        if not isinstance(other, HostQueue):
            raise TypeError(f"a host queue can wait only for host queues, not for a {type(other).__name__}")
        wait_in_capture(self, other, integer_of(tick, "tick"))

    def close(self, timeout: float | None = None) -> bool:
        self.abandon_capture()
        return self.close(timeout)  # abandon_capture() has restored the class


HostQueue._recording_class = HostCapturedGraph  # noqa: SLF001 - queues create recordings, whose module imports theirs
