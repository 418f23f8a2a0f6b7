"""What a trace is made of, kept while the program runs: an entry for each thing that happened, without names.

A queue of Logs numbers its work and knows when it ran. One of Timing gets a mark behind each piece of it, and one in
front where it has nothing to do: what is behind other work begins when that ends. The host's clock says when the
program asked for it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from time import perf_counter_ns
from typing import Any
from weakref import WeakValueDictionary

from forebay.backends.plugins.contract_checks import FAILURES
from forebay.errors import DeviceError, ForebayError
from forebay.observe.ranges import ranges
from forebay.observe.ranges.ranges import Range
from forebay.observe.tracing import _entries
from forebay.observe.tracing._entries import MOMENT, RANGE, Counters
from forebay.observe.tracing.clock_alignment import Tried, tries
from forebay.runtime.base import observers
from forebay.runtime.devices import open_device
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import Storage
from forebay.runtime.streams.event import Event
from forebay.runtime.streams.stream import Stream
from forebay.spi import Logs, Queue, Timing

__all__ = ["Line", "Me", "Recorder", "Seen"]

_MOST_LOGGED = 1 << 24  # pieces of work of one queue
_POLL = 0.0005  # seconds between two looks at a queue that is still at work


class Me:
    """A thread that was seen. Its `ident` may be another's when it has ended, its `key` never is."""

    def __init__(self) -> None:
        self.key = next(_keys)
        ident = threading.get_ident()
        self.native_id = threading.get_native_id()
        # Of a queue's own thread there is none, and to ask for the current one would make one for good.
        self.thread = next((each for each in threading.enumerate() if each.ident == ident), None)

    @property
    def name(self) -> str:
        return f"thread {self.native_id}" if self.thread is None else self.thread.name


class _Here(threading.local):
    def __init__(self) -> None:
        self.me = me = Me()
        self.key = me.key
        _everybody[me.key] = me
        for recorder in _recording:
            recorder.people[me.key] = me


_keys = count()
_everybody: WeakValueDictionary[int, Me] = WeakValueDictionary()  # who was seen and is still there
_recording: tuple[Recorder, ...] = ()
_changing = threading.RLock()  # a destructor may come in between
_here = _Here()


class Seen:
    """A tick of a queue that cannot time, and when the host saw that it was reached; 0: not yet."""

    __slots__ = ("at", "tick")

    def __init__(self, tick: int) -> None:
        self.tick = tick
        self.at = 0


class Line(_entries.Line):
    """What the recorder knows of a queue."""

    def __init__(self, key: int, queue: Queue, counters: dict[OpenDevice, Counters], most: int) -> None:
        self.opened = opened = _owner_of(queue)
        if opened is not None and opened not in counters:
            counters[opened] = Counters(opened.allocator.current)
        super().__init__(key, queue, None if opened is None else counters[opened])
        self.logs, self.timed = isinstance(queue, Logs), isinstance(queue, Logs | Timing)
        self.mark = queue.given if isinstance(queue, Logs) else queue.mark if isinstance(queue, Timing) else self._seen
        self.reached = 0  # when the recording ended
        self.wrong = ""  # of what its backend says of it
        self.log = _log_of(self, queue, most) if isinstance(queue, Logs) else None
        self._unseen: deque[Seen] = deque()

    def done(self) -> bool:
        """What is known of, is done."""
        if self.last is None:
            return True
        try:
            if self.log is not None:
                return bool(self.times(self.last)[1]) or self.queue.idle()
            return bool(self.queue.reached() >= self.last.tick)
        except FAILURES as error:
            self._note(error)
            return True  # there is nothing to wait for

    def came_to(self) -> int:
        """The tick, or where the queue logs the number of the work, up to which all is done; 0: that is not known."""
        if self.log is not None:
            return int(self.last) if self.last is not None and self.done() else 0
        try:
            return int(self.queue.reached())
        except FAILURES as error:
            self._note(error)
            return 0

    def times(self, number: int) -> tuple[int, int]:
        """When that piece of work began and ended, as the log has it."""
        try:
            return (0, 0) if self.log is None else self.log(number)
        except FAILURES as error:
            self._note(error)
            return 0, 0

    def _note(self, error: Exception) -> None:
        """A backend's mistakes are no reason for a trace to fail."""
        self.wrong = self.wrong or str(error)

    def _seen(self) -> Seen:
        self.look()
        self._unseen.append(seen := Seen(self.queue.signal()))
        return seen

    def look(self) -> None:
        """What a queue that cannot time has done, it has done by now."""
        try:
            reached = self.queue.reached()
        except FAILURES as error:
            self._note(error)
            return
        with contextlib.suppress(IndexError):  # there is no more, or another thread was quicker
            while True:
                seen = self._unseen.popleft()
                if seen.tick > reached:
                    self._unseen.appendleft(seen)
                    return
                seen.at = perf_counter_ns()


class Recorder(_entries.Entries, observers.Listener, observers.Tracer):
    """Keeps the last `most` entries, from `begin` to `finish`, in the thread that does what they are about."""

    hears_ends = False

    def __init__(self, most: int, *, wait_until_completed: bool = False) -> None:
        super().__init__(most, _here, _is_ours, wait_until_completed)
        self.by_key: dict[int, Line] = {}
        self._most = most
        self.began = self.ended = 0
        self.people: dict[int, Me] = {}  # by key
        self._keys = count()
        self.tried: dict[OpenDevice, Tried] = {}
        self.open_ranges: dict[Me, list[tuple[str, int]]] = {}  # nested ones, by thread
        self.started: dict[int, tuple[int, str, int]] = {}  # others, by number: the thread's key, the name, since when
        self._counters: dict[OpenDevice, Counters] = {}
        self._tool = _Ranges(self)

    def begin(self) -> None:
        global _recording  # noqa: PLW0603 -- read without a lock: a tuple is whole at any time
        with _changing:
            _recording = (*_recording, self)
        self.people |= _everybody.items()
        self.began = perf_counter_ns()
        ranges.attach(self._tool)
        observers.add(self)
        observers.trace(self)

    def finish(self, limit: float) -> None:
        """Record no more, and wait for work that is not done yet: as many seconds, if it takes so long."""
        global _recording  # noqa: PLW0603 -- as above
        with _changing:
            _recording = tuple(each for each in _recording if each is not self)
        for line in tuple(self.lines.values()):
            self.count(line)
        observers.trace_no_more(self)
        observers.remove(self)
        ranges.detach(self._tool)
        self.ended = self.ended or perf_counter_ns()  # the second time, if the first was interrupted
        self.close()
        end = time.monotonic() + limit
        for line in tuple(self.lines.values()):
            while not line.done() and (line.opened is None or not line.opened.gone) and time.monotonic() < end:
                time.sleep(_POLL)
            if not line.timed:
                line.look()
            line.reached = line.came_to()
            by_marks = line.timed and not line.logs and line.last is not None
            if by_marks and line.opened is not None and line.opened not in self.tried:
                self.tried[line.opened] = tries(line.queue)

    def forget(self) -> None:
        """In a forked child: what there was is the parent's. That nobody listens there is seen to."""
        global _recording, _changing
        _recording, _changing = (), threading.RLock()
        ranges.forget_in_child(self._tool)
        self.drop()

    def drop(self) -> None:
        """Nothing of it is needed any more: queues keep no log for it."""
        self.clear()
        self.by_key.clear()

    def line(self, queue: Queue) -> Line:
        found: Line | None = self.lines.get(id(queue))
        if found is None:
            found = self.lines.setdefault(id(queue), Line(next(self._keys), queue, self._counters, self._most))
            self.by_key[found.key] = found
            self.count(found)
        return found

    def _complete(self, line: Line, end: Any) -> None:
        """A failure of the work is for the next synchronization to raise, as without us."""
        try:
            line.queue.wait(line.queue.signal() if line.logs else end.tick)
        except DeviceError as failure:
            if line.opened is not None:
                line.opened.allocator.failures.setdefault(line.queue.handle, failure.with_traceback(None))
        except ForebayError:  # this is the queue's own thread
            return
        line.look()

    # What the host does

    def device_synchronized(self, opened: OpenDevice) -> None:
        self.note(MOMENT, f"synchronize {opened.device}", above=1)

    def event_created(self, event: Event) -> None:
        self.note(MOMENT, "", id(event), above=1)  # tells it from others that had its number

    def event_recorded(self, event: Event, stream: Stream) -> None:
        self.note(MOMENT, "record event", id(event), self.line(stream.queue), above=1)

    def event_waited(self, event: Event, stream: Stream) -> None:
        self.note(MOMENT, "wait for event", id(event), self.line(stream.queue), above=1)

    def event_synchronized(self, event: Event) -> None:
        self.note(MOMENT, "synchronize event", id(event), above=1)

    def event_queried(self, event: Event, done: bool) -> None:
        self.note(MOMENT, "query event: done" if done else "query event: not yet", id(event), above=1)

    def allocated(self, storage: Storage, queue: int) -> None:
        """What is freed shows at the next allocation or wait: to hear of it takes a microsecond."""
        found = storage.opened.queues.get(queue)
        if found is not None:
            self.count(self.line(found))

    def ranged(self, ended: Range) -> None:
        self.add(RANGE, (_here.key, *ended))


class _Ranges:
    """The recorder's ear for ranges."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._open, self._started = recorder.open_ranges, recorder.started

    def push(self, name: str) -> None:
        self._open.setdefault(_here.me, []).append((name, perf_counter_ns()))

    def pop(self, ended: Range) -> None:
        if begun := self._open.get(_here.me):  # else it began before we listened
            begun.pop()
            if not begun:  # threads come and go
                self._open.pop(_here.me, None)
        self._recorder.ranged(ended)

    def start(self, number: int, name: str) -> None:
        self._started[number] = _here.key, name, perf_counter_ns()

    def end(self, number: int, ended: Range) -> None:
        self._started.pop(number, None)
        self._recorder.ranged(ended)

    def mark(self, at: Range) -> None:
        self._recorder.ranged(at)


def _owner_of(queue: Queue) -> OpenDevice | None:
    found = open_device.opened_of().devices
    return next((opened for opened in found if opened.queues.get(queue.handle) is queue), None)


def _log_of(line: Line, queue: Logs, most: int) -> Callable[[int], tuple[int, int]]:
    """A log of so many pieces of work, or of fewer, as memory has room. A trace is no reason for a program to fail."""
    most = min(most, _MOST_LOGGED)
    while most:
        try:
            return queue.log(most)
        except MemoryError:
            most //= 4
        except ForebayError:  # it was closed
            break
        except FAILURES as error:  # its backend is wrong
            line.wrong = str(error)
            break
    return lambda _number: (0, 0)


_HERE = str(Path(__file__).parents[2]) + os.sep
_TESTING = _HERE + "testing" + os.sep  # programs, like others
_BETWEEN = frozenset((contextlib.__file__, functools.__file__))


def _is_ours(file: str) -> bool:
    return file in _BETWEEN or (file.startswith(_HERE) and not file.startswith(_TESTING))
