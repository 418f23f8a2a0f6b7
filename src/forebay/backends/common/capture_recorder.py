"""What queues are told, recorded instead of done: the books and the rules of the ability `Captures`.

A backend adds how its queues become members, and how what was recorded is done: see `Recorder`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import MutableMapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from forebay.backends.common.arguments import address_of
from forebay.backends.common.cuda_errors import (
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
from forebay.errors import DeviceError, WrongState
from forebay.spi import Queue, Recorded

__all__ = ["CapturedMark", "Recorder", "Records", "recorded_wait"]

_Front = frozenset[int]  # the pieces of work that the next one comes after
_ticks = count(-1, -1)  # of all recordings: below 0, as queues count upwards


class CapturedMark(NamedTuple):
    """A tick of a recording. It has no moment: each replay has its own."""

    tick: int


class _Member(Queue, Protocol):
    """What a recording asks of a queue."""

    @property
    def capture(self) -> Any: ...  # the Recorder that it takes part in, or None
    def check_usable(self) -> None: ...  # Forked, or WrongState where it was closed
    def refused(self, code: int, call: str) -> DeviceError: ...  # CUDA's error of that number


_Q = TypeVar("_Q", bound=_Member)


class Recorder(ABC, Generic[_Q]):
    """What queues were told since `first` began to record. It ends when its life does, or `first`'s.

    A backend's own says how a queue comes to record (`take_in`) and to work again (`let_go`), and how all of it is done
    (`launch`, which first asks `included`); `finished` may prepare that.
    """

    def __init__(self, first: _Q, mode: str, queues: MutableMapping[int, int]) -> None:
        self.queues = queues
        self.work: list[Recorded] = []
        self.retained: list[object] = []
        self.lock = threading.RLock()
        self._first = first
        self._thread = None if mode == "relaxed" else threading.get_ident()  # that must end it
        self._members: dict[int, _Q] = {}
        self._fronts: dict[int, _Front] = {}
        self._bodies: dict[int, list[int]] = {}  # of each queue: the conditions whose bodies it is in
        self._marks: dict[int, _Front] = {}  # of each tick
        self._broken = self._ended = False
        self.check(first, "begin_capture")
        self.enlist(first, frozenset())

    @abstractmethod
    def take_in(self, queue: _Q) -> None:
        """From now on its `capture` is this one."""

    @abstractmethod
    def let_go(self, queue: _Q) -> None:
        """Its `capture` is None again."""

    def finished(self) -> None:
        """The recording is whole; what is raised here breaks it."""

    @abstractmethod
    def launch(self, queue: Queue, sources: Sequence[tuple[int, int]] = ()) -> None:
        """Do it there."""

    # While it goes on

    def enlist(self, queue: _Q, front: _Front) -> None:
        """The queue takes part from now on."""
        tick = queue.reached() if queue.idle() else queue.signal()  # the former starts no thread
        with self.lock:
            self.queues[queue.handle] = tick
            self._members[queue.handle] = queue
            self._fronts[queue.handle] = front
            self.take_in(queue)

    def check(self, queue: _Q, call: str) -> None:
        """Forked, WrongState or DeviceError 901, where nothing more can be recorded."""
        queue.check_usable()
        if self._broken:
            raise queue.refused(CAPTURE_BROKEN, call)

    def add(self, queue: _Q, what: str, **details: Any) -> int:
        """One more piece of work, behind what the queue has; gives its number."""
        self.check(queue, what)
        with self.lock:
            number = len(self.work)
            self.work.append(Recorded(what, tuple(sorted(self._fronts[queue.handle])), details))
            self._fronts[queue.handle] = frozenset((number,))
        return number

    def signal(self, queue: _Q) -> int:
        self.check(queue, "signal")
        tick = next(_ticks)
        self._marks[tick] = self._fronts[queue.handle]
        return tick

    def knows(self, tick: int) -> bool:
        return tick in self._marks

    def depend(self, queue: _Q, tick: int) -> None:
        """What the queue does from now on comes behind the tick, too."""
        self.check(queue, "wait_for")
        with self.lock:
            before = self._marks[tick]
            if not before <= self._before(self._fronts[queue.handle]):
                self._fronts[queue.handle] |= before

    def forbid(self, queue: _Q, call: str) -> DeviceError:
        """The error for what a recording forbids, like waiting. Nothing more can be recorded."""
        return self.fail(queue, CAPTURE_FORBIDS, call)

    def fail(self, queue: _Q, code: int, call: str) -> DeviceError:
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
        with self.lock:
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

    def _body(self, queue: _Q) -> list[int]:
        found = self._bodies.get(queue.handle)
        if not found:
            raise WrongState("no condition's body is being recorded")
        return found

    def _member(self, queue: Queue) -> _Q:
        found = self._members.get(queue.handle)
        if found is not queue:
            raise WrongState("the queue takes no part in this recording")
        return found

    def _within(self, number: int, condition: int) -> bool:
        return condition in self._before(frozenset((number,)))

    # Its end

    def end(self, queue: _Q) -> None:
        if self._thread not in (None, threading.get_ident()):
            raise queue.refused(CAPTURE_OF_ANOTHER_THREAD, "end_capture")
        if queue is not self._first:
            raise self.fail(queue, CAPTURE_UNMATCHED, "end_capture")
        with self.lock:
            done = self._before(self._fronts[queue.handle])
            joined = all(front <= done for front in self._fronts.values())
            self.disband()
        if self._broken:
            raise queue.refused(CAPTURE_BROKEN, "end_capture")
        self._broken = True  # until it is whole
        if not joined or any(self._bodies.values()):
            raise queue.refused(CAPTURE_UNJOINED, "end_capture")
        self.finished()
        self._broken = False

    def disband(self) -> None:
        """Its queues do what they are told again."""
        with self.lock:
            self._ended = True
            for queue in self._members.values():
                if queue.capture is self:
                    self.let_go(queue)
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

    def included(self, queue: _Q, sources: Sequence[tuple[int, int]]) -> bool:
        """For `launch`: whether the queue is recording, and has it as a part of that now.

        WrongState where it was not recorded to its end.
        """
        if not self._ended or self._broken:
            raise WrongState("only what was recorded to its end can be launched")
        if queue.capture is None:
            return False
        queue.capture.include(queue, self, sources)
        return True

    def include(self, queue: _Q, other: Recorder[_Q], sources: Sequence[tuple[int, int]]) -> None:
        """The work of another recording, as a part of this one; its draws count from these sources' places."""
        with self.lock:
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


_R = TypeVar("_R", bound=Recorder[Any])


class Records(Generic[_R]):
    """Half of a queue that can record: the calls of `Captures`. The other half says what they work with.

    `capture` is the recording that it takes part in; `new_recording` makes one of the backend's own; `refused` gives
    CUDA's error of that number, as this kind words it.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # the other half's

        @property
        def capture(self) -> _R | None: ...
        def new_recording(self, mode: str, queues: MutableMapping[int, int]) -> _R: ...
        def refused(self, code: int, call: str) -> DeviceError: ...

    def check_recorded(self, tick: int) -> None:
        """For `wait`: DeviceError where the tick is one of a recording, which the host cannot wait for."""
        if tick < 0:
            recording = self.capture
            raise self.refused(CAPTURED_EVENT, "wait") if recording is None else recording.forbid(self, "wait")

    def begin_capture(self, mode: str = "global", queues: MutableMapping[int, int] | None = None) -> _R:
        if self.capture is not None:
            raise self.refused(ILLEGAL_STATE, "begin_capture")
        return self.new_recording(mode, {} if queues is None else queues)

    def end_capture(self) -> _R:
        if (recording := self.capture) is None:
            raise self.refused(ILLEGAL_STATE, "end_capture")
        recording.end(self)
        return recording

    def break_capture(self) -> None:
        if (recording := self.capture) is not None:
            recording.break_off()

    def abandon_capture(self) -> None:
        if (recording := self.capture) is not None:
            recording.break_off()
            recording.disband()


def recorded_wait(queue: _Member, other: _Member, tick: int) -> bool:
    """For `wait_for`: whether a recording is concerned, which has been told; False where the queue itself is to wait.

    A queue that waits for a tick of a recording takes part in it from then on.
    """
    mine: Recorder[Any] | None = queue.capture
    theirs: Recorder[Any] | None = other.capture
    if theirs is not None and not theirs.knows(tick):
        theirs = None
    if mine is None:
        if tick >= 0:
            return False
        if theirs is None:
            raise queue.refused(CAPTURED_EVENT, "wait_for")
        theirs.check(queue, "wait_for")
        theirs.enlist(queue, frozenset())
        theirs.depend(queue, tick)
        return True
    if tick >= 0:
        raise mine.fail(queue, CAPTURE_ISOLATED, "wait_for")
    if mine.knows(tick):
        mine.depend(queue, tick)
        return True
    if theirs is not None:
        theirs.break_off()
        raise mine.fail(queue, CAPTURE_MERGE, "wait_for")
    raise mine.fail(queue, CAPTURED_EVENT, "wait_for")
