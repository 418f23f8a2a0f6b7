"""Recording what host queues are told, and doing it again: one native program, but for what Python has to do."""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from penstock import _core
from penstock.backends.arguments import address_of, byte_of, index_of, integer_of, size_of
from penstock.backends.cuda_errors import (
    CAPTURE_BROKEN,
    CAPTURE_FORBIDS,
    CAPTURE_ISOLATED,
    CAPTURE_MERGE,
    CAPTURE_OF_ANOTHER_THREAD,
    CAPTURE_UNJOINED,
    CAPTURE_UNMATCHED,
    CAPTURED_EVENT,
    ILLEGAL_STATE,
)
from penstock.backends.drawing import packed
from penstock.backends.host_program import Piece, pieces_of, reseeded
from penstock.backends.host_queue import HostQueue
from penstock.errors import DeviceError, Forked, WrongState
from penstock.spi import Draw, Queue, Recorded

__all__ = ["CapturedMark", "HostRecording", "RecordingQueue", "join"]

_native = _core.Queue
_Front = frozenset[int]  # the pieces of work that the next one comes after
_ticks = count(-1, -1)  # of all recordings: below 0, as queues count upwards


class CapturedMark(NamedTuple):
    """A tick of a recording. It has no moment: each replay has its own."""

    tick: int


class HostRecording:
    """What queues of host devices were told since `first` began to record. It ends when its life does, or `first`'s."""

    def __init__(self, first: HostQueue, mode: str, queues: MutableMapping[int, int]) -> None:
        self.queues = queues
        self.work: list[Recorded] = []
        self.retained: list[object] = []
        self._first = first
        self._thread = None if mode == "relaxed" else threading.get_ident()  # that must end it
        self._members: dict[int, HostQueue] = {}
        self._usual: dict[int, type[HostQueue]] = {}  # what they are when they record nothing
        self._fronts: dict[int, _Front] = {}
        self._bodies: dict[int, list[int]] = {}  # of each queue: the conditions whose bodies it is in
        self._marks: dict[int, _Front] = {}  # of each tick
        self._broken = self._ended = False
        self._lock = threading.RLock()
        self._pieces: list[Piece] = []
        self._last: HostQueue | None = None  # that it was launched on
        self.check(first, "begin_capture")
        self.enlist(first, frozenset())

    # While it goes on

    def enlist(self, queue: HostQueue, front: _Front) -> None:
        """The queue takes part from now on."""
        tick = _native.signal(queue) if not queue.idle() else queue.reached()  # the latter starts no thread
        with self._lock:
            self.queues[queue.handle] = tick
            self._members[queue.handle] = queue
            self._fronts[queue.handle] = front
            queue.recording = self
            self._usual[queue.handle] = queue.__class__
            queue.__class__ = RecordingQueue  # so that queues that record nothing need not ask

    def check(self, queue: HostQueue, call: str) -> None:
        """Forked, or DeviceError 901, where nothing more can be recorded."""
        if queue.owner.forked():
            raise Forked(f"{queue.owner.name} was opened before this process was forked, so its queues are gone")
        if queue.closed:
            raise WrongState(f"{queue.owner.name}: queue {queue.handle} was closed")
        if self._broken:
            raise queue.refused(CAPTURE_BROKEN, call)

    def add(self, queue: HostQueue, what: str, **details: Any) -> int:
        """One more piece of work, behind what the queue has; gives its number."""
        self.check(queue, what)
        with self._lock:
            number = len(self.work)
            self.work.append(Recorded(what, tuple(sorted(self._fronts[queue.handle])), details))
            self._fronts[queue.handle] = frozenset((number,))
        return number

    def signal(self, queue: HostQueue) -> int:
        self.check(queue, "signal")
        tick = next(_ticks)
        self._marks[tick] = self._fronts[queue.handle]
        return tick

    def knows(self, tick: int) -> bool:
        return tick in self._marks

    def depend(self, queue: HostQueue, tick: int) -> None:
        """What the queue does from now on comes behind the tick, too."""
        self.check(queue, "wait_for")
        with self._lock:
            before = self._marks[tick]
            if not before <= self._before(self._fronts[queue.handle]):
                self._fronts[queue.handle] |= before

    def fail(self, queue: HostQueue, code: int, call: str) -> DeviceError:
        """The error to raise. Nothing more can be recorded."""
        if self._broken:
            return queue.refused(CAPTURE_BROKEN, call)
        self._broken = True
        return queue.refused(code, call)

    def break_off(self) -> None:
        self._broken = True

    def retain(self, *objects: object) -> None:
        self.retained.extend(objects)

    # Conditions

    def begin_if(self, queue: Queue, address: int) -> None:
        self._begin(queue, "if", address)

    def begin_while(self, queue: Queue, address: int) -> None:
        self._begin(queue, "while", address)

    def set_again(self, queue: Queue, address: int) -> None:
        """Look at the byte anew, for the condition whose body the queue is in. WrongState: it is in none."""
        member = self._member(queue)
        self.add(member, "set", address=address_of(address), of=self._body(member)[-1])

    def end_body(self, queue: Queue) -> None:
        member = self._member(queue)
        self.check(member, "end_body")
        condition = self._body(member).pop()
        with self._lock:
            first = self.work[condition]
            if first.what == "while":
                self.add(member, "again", of=condition)
            body = range(condition + 1, len(self.work))
            strangers = [number for number in body if not self._within(number, condition)]
            if strangers:
                raise self.fail(member, CAPTURE_ISOLATED, "end_body")
            self.work[condition] = first._replace(body=body)
            self._fronts[member.handle] = frozenset((condition,)) if not body else self._fronts[member.handle]

    def _begin(self, queue: Queue, what: str, address: int) -> None:
        member = self._member(queue)
        number = self.add(member, what, address=address_of(address))
        self._bodies.setdefault(member.handle, []).append(number)

    def _body(self, queue: HostQueue) -> list[int]:
        found = self._bodies.get(queue.handle)
        if not found:
            raise WrongState(f"{queue.owner.name}: no condition's body is being recorded")
        return found

    def _member(self, queue: Queue) -> HostQueue:
        if not isinstance(queue, HostQueue) or queue.capture is not self:
            raise WrongState("the queue takes no part in this recording")
        return queue

    def _within(self, number: int, condition: int) -> bool:
        return condition in self._before(frozenset((number,)))

    # Its end

    def end(self, queue: HostQueue) -> None:
        if self._thread not in (None, threading.get_ident()):
            raise queue.refused(CAPTURE_OF_ANOTHER_THREAD, "end_capture")
        if queue is not self._first:
            raise self.fail(queue, CAPTURE_UNMATCHED, "end_capture")
        with self._lock:
            done = self._before(self._fronts[queue.handle])
            joined = all(front <= done for front in self._fronts.values())
            self.disband()
        if self._broken:
            raise queue.refused(CAPTURE_BROKEN, "end_capture")
        self._broken = True  # until it is whole
        if not joined:
            raise queue.refused(CAPTURE_UNJOINED, "end_capture")
        if any(self._bodies.values()):
            raise queue.refused(CAPTURE_UNJOINED, "end_capture")
        self._pieces = pieces_of(self.work)
        self._broken = False

    def disband(self) -> None:
        """Its queues do what they are told again."""
        with self._lock:
            self._ended = True
            for queue in self._members.values():
                if queue.__class__ is RecordingQueue and queue.recording is self:
                    queue.__class__ = self._usual[queue.handle]  # type: ignore[assignment]  # what it was before
                    del queue.recording
            self._members.clear()
            self.queues.clear()

    def _before(self, front: _Front) -> set[int]:
        """These pieces of work, and all that they come after."""
        found, look = set[int](), list(front)
        while look:
            number = look.pop()
            if number not in found:
                found.add(number)
                look.extend(self.work[number].after)
        return found

    # Again

    def launch(self, queue: Queue, sources: Sequence[tuple[int, int]] = ()) -> None:
        """Do it there, in the order of its recording."""
        if not self._ended or self._broken:
            raise WrongState("only what was recorded to its end can be launched")
        if not isinstance(queue, HostQueue):
            raise TypeError(f"what host queues did is launched on a host queue, not on a {type(queue).__name__}")
        if isinstance(queue, RecordingQueue):
            queue.recording.include(queue, self, sources)
            return
        with self._lock:
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

    def include(self, queue: HostQueue, other: HostRecording, sources: Sequence[tuple[int, int]]) -> None:
        """The work of another recording, as a part of this one; its draws count from these sources' places."""
        with self._lock:
            self.check(queue, "launch")
            front, start = self._fronts[queue.handle], len(self.work)
            ends = set(range(len(other.work)))
            for what, after, details, body in other.work:
                ends.difference_update(after)
                shifted = tuple(start + number for number in after) or tuple(sorted(front))
                more = dict(details)
                if "of" in more:
                    more["of"] += start
                if what == "draw":
                    source, offset = sources[more["source"]]
                    more |= {"source": source, "offset": more["offset"] + offset}
                self.work.append(Recorded(what, shifted, more, range(start + body.start, start + body.stop)))
            if ends:
                self._fronts[queue.handle] = frozenset(start + number for number in ends)
            self.retain(other)


class RecordingQueue(HostQueue):
    """What a host queue is while it is recorded. Ticks from before can still be asked about and waited for."""

    __slots__ = ()

    @property
    def capture(self) -> HostRecording | None:
        return self.recording

    def begin_capture(
        self,
        mode: str = "global",  # noqa: ARG002 -- there is none in which it could
        queues: MutableMapping[int, int] | None = None,  # noqa: ARG002 -- as above
    ) -> HostRecording:
        raise self.refused(ILLEGAL_STATE, "begin_capture")

    def end_capture(self) -> HostRecording:
        recording = self.recording
        recording.end(self)
        return recording

    def break_capture(self) -> None:
        self.recording.break_off()

    def abandon_capture(self) -> None:
        self.recording.break_off()
        self.recording.disband()

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        dst, src, nbytes = address_of(dst, "dst"), address_of(src, "src"), size_of(nbytes)
        self.recording.add(self, "copy", to=dst, source=src, nbytes=nbytes)

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        dst, byte, nbytes = address_of(dst, "dst"), byte_of(byte), size_of(nbytes)
        self.recording.add(self, "fill", to=dst, byte=byte, nbytes=nbytes)

    def draw(self, draw: Draw) -> None:
        self.recording.add(
            self, "draw", law=draw.law, to=draw.address, elements=draw.elements, element=draw.element,
            source=draw.seed, offset=draw.offset, packed=packed(draw._replace(seed=0, offset=0)),
        )  # fmt: skip

    def call(self, function: Callable[[], object]) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}")
        self.recording.add(self, "call", function=function)

    def call_native(self, function: int, argument: int) -> None:
        address_of(function, "function")
        index_of(argument, "argument")
        self.recording.add(self, "native", function=function, argument=argument)

    def signal(self) -> int:
        return self.recording.signal(self)

    def mark(self) -> CapturedMark:  # type: ignore[override]  # a Mark all the same, of the contract's
        return CapturedMark(self.recording.signal(self))

    def idle(self) -> bool:
        raise self.recording.fail(self, CAPTURE_FORBIDS, "idle")

    def wait(self, tick: int) -> None:
        if integer_of(tick, "tick") < 0:
            raise self.recording.fail(self, CAPTURE_FORBIDS, "wait")
        super().wait(tick)

    def wait_for(self, other: object, tick: int) -> None:
        if not isinstance(other, HostQueue):
            raise TypeError(f"a host queue waits for host queues, not for a {type(other).__name__}")
        tick = integer_of(tick, "tick")
        if tick >= 0:
            raise self.recording.fail(self, CAPTURE_ISOLATED, "wait_for")
        if self.recording.knows(tick):
            self.recording.depend(self, tick)
            return
        theirs = other.capture
        if theirs is not None and theirs.knows(tick):
            theirs.break_off()
            raise self.recording.fail(self, CAPTURE_MERGE, "wait_for")
        raise self.recording.fail(self, CAPTURED_EVENT, "wait_for")

    def close(self, timeout: float | None = None) -> bool:
        """What was recorded so far is no recording."""
        self.abandon_capture()
        return self.close(timeout)  # it is a HostQueue now


def join(queue: HostQueue, other: object, tick: int) -> None:
    """The queue waits for a tick of a recording, and so takes part in it."""
    theirs = other.capture if isinstance(other, HostQueue) else None
    if theirs is None or not theirs.knows(tick):
        raise queue.refused(CAPTURED_EVENT, "wait_for")
    theirs.check(queue, "wait_for")
    theirs.enlist(queue, frozenset())
    theirs.depend(queue, tick)
