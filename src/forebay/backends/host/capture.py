"""Recording what host queues are told, and doing it again: one native program, but for what Python has to do."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence

from forebay import _core
from forebay.backends.common import recorded_work
from forebay.backends.common.arguments import integer_of
from forebay.backends.common.capture_recorder import CapturedMark, Recorder, recorded_wait
from forebay.backends.common.cuda_errors import ILLEGAL_ADDRESS
from forebay.backends.common.draw_encoding import packed
from forebay.backends.host.footprint import Footprint, Ground
from forebay.backends.host.program import Piece, pieces_of, reseeded
from forebay.backends.host.queue import HostQueue
from forebay.spi import Draw, Queue

__all__ = ["HostRecording", "RecordingQueue"]

_native = _core.Queue
_GONE = (
    "The graph uses {1} bytes at {0:#x}, and the device gave that memory back since the capture: "
    "keep the tensors that a graph reads and writes as long as it is replayed."
)


class HostRecording(Recorder[HostQueue]):
    """What queues of host devices were told."""

    def __init__(self, first: HostQueue, mode: str, queues: MutableMapping[int, int]) -> None:
        self._usual: dict[int, type[HostQueue]] = {}  # what they are when they record nothing
        self._pieces: list[Piece] = []
        self._last: HostQueue | None = None  # that it was launched on
        self.ports: set[Ground] = set()  # of its queues
        super().__init__(first, mode, queues)

    def take_in(self, queue: HostQueue) -> None:
        queue.recording = self
        self.ports.add(queue.owner)
        self._usual[queue.handle] = queue.__class__
        queue.__class__ = RecordingQueue  # so that queues that record nothing need not ask

    def let_go(self, queue: HostQueue) -> None:
        queue.__class__ = self._usual[queue.handle]  # what it was before
        del queue.recording

    def include(self, queue: HostQueue, other: Recorder[HostQueue], sources: Sequence[tuple[int, int]]) -> None:
        super().include(queue, other, sources)
        if isinstance(other, HostRecording):
            self.ports |= other.ports

    def finished(self) -> None:
        self._pieces = pieces_of(self.work)
        self._footprint = Footprint(self.ports, self.work)

    def launch(self, queue: Queue, sources: Sequence[tuple[int, int]] = ()) -> None:
        """Do it there, in the order of its recording."""
        if not isinstance(queue, HostQueue):
            raise TypeError(f"what host queues did is launched on a host queue, not on a {type(queue).__name__}")
        if self.included(queue, sources):
            return
        with self.lock:
            if (lost := self._footprint.lost()) is not None:
                raise queue.refused(ILLEGAL_ADDRESS, "launch", _GONE.format(*lost))
            pieces = [piece if callable(piece) else reseeded(piece, sources) for piece in self._pieces]
            queue.expect_programs(piece for piece in pieces if isinstance(piece, bytes))
            if self._last is not None and self._last is not queue and not self._last.closed:
                _native.wait_for(queue, self._last, _native.signal(self._last))
            self._last = queue
            for piece in pieces:
                if isinstance(piece, bytes):
                    queue.run_program(piece)
                else:
                    queue.call(piece)


class RecordingQueue(HostQueue):
    """What a host queue is while it is recorded. Ticks from before can still be asked about and waited for."""

    __slots__ = ()

    @property
    def capture(self) -> HostRecording | None:
        return self.recording

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        self.recording.add(self, "copy", **recorded_work.copy(dst, src, nbytes))

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        self.recording.add(self, "fill", **recorded_work.fill(dst, byte, nbytes))

    def draw(self, draw: Draw) -> None:
        self.recording.add(self, "draw", **recorded_work.draw(draw), packed=packed(draw._replace(seed=0, offset=0)))

    def call(self, function: Callable[[], object]) -> None:
        self.recording.add(self, "call", **recorded_work.call(function))

    def call_native(self, function: int, argument: int) -> None:
        self.recording.add(self, "native", **recorded_work.native(function, argument))

    def signal(self) -> int:
        return self.recording.signal(self)

    def mark(self) -> CapturedMark:  # type: ignore[override]  # a Mark all the same, of the contract's
        return CapturedMark(self.recording.signal(self))

    def idle(self) -> bool:
        raise self.recording.forbid(self, "idle")

    def wait(self, tick: int) -> None:
        self.check_recorded(integer_of(tick, "tick"))
        super().wait(tick)

    def wait_for(self, other: object, tick: int) -> None:
        if not isinstance(other, HostQueue):
            raise TypeError(f"a host queue waits for host queues, not for a {type(other).__name__}")
        recorded_wait(self, other, integer_of(tick, "tick"))

    def close(self, timeout: float | None = None) -> bool:
        """What was recorded so far is no recording."""
        self.abandon_capture()
        return self.close(timeout)  # it is a HostQueue now
