"""Recorder of a trace: one entry per operation, wait, event or range, with numbers instead of names.

A queue with ExecutionLog numbers its work and keeps the times. A queue with Timing gets a mark after each operation,
and one before an operation that finds the queue idle; other operations begin when the previous one ends. The host's
clock records when the program queued the operation.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from time import perf_counter_ns
from typing import Any
from weakref import WeakValueDictionary

from forebay.backends.plugins.contract_checks import FAILURES
from forebay.errors import DeviceError, ForebayError, without_frames
from forebay.observe.ranges import ranges
from forebay.observe.ranges.range import Range
from forebay.observe.tracing import _entries
from forebay.observe.tracing._entries import MOMENT, RANGE, MemoryCounters
from forebay.observe.tracing.clock_alignment import ClockSample, sample_clock
from forebay.runtime.base import observers
from forebay.runtime.devices import open_device
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import Storage
from forebay.runtime.streams.event import Event
from forebay.runtime.streams.stream import Stream
from forebay.spi import ExecutionLog, Queue, Timing

__all__ = ["ObservedTick", "QueueTrack", "Recorder", "ThreadInfo"]

_MAX_LOGGED = 1 << 24  # pieces of work in the log of one queue
_POLL = 0.0005  # seconds between two checks of a busy queue


class ThreadInfo:
    """A thread that made an entry. A later thread may get its `ident`, but never its `key`."""

    def __init__(self) -> None:
        self.key: int = next(_keys)
        ident = threading.get_ident()
        self.native_id: int = threading.get_native_id()
        # Not threading.current_thread(): for a queue's own thread it creates a Thread object that is never deleted.
        self.thread: threading.Thread | None = next(
            (each for each in threading.enumerate() if each.ident == ident), None
        )

    @property
    def name(self) -> str:
        return f"thread {self.native_id}" if self.thread is None else self.thread.name


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.info = info = ThreadInfo()
        self.key = info.key
        _threads[info.key] = info
        for recorder in _recording:
            recorder.threads[info.key] = info


_keys = count()
_threads: WeakValueDictionary[int, ThreadInfo] = WeakValueDictionary()  # live threads, by key
_recording: tuple[Recorder, ...] = ()
_changing = threading.RLock()  # reentrant: a destructor may run inside
_thread_state = _ThreadState()


class ObservedTick:
    """A tick of a queue that cannot time, and when the host observed that it was reached (0: not yet)."""

    __slots__ = ("at", "tick")

    def __init__(self, tick: int) -> None:
        self.tick: int = tick
        self.at: int = 0


class QueueTrack(_entries.QueueTrack):
    """A queue, as the recorder sees it. Errors of a faulty backend are kept in `error`: they must not fail a trace."""

    logs: bool
    mark: Callable[[], Any]
    opened: OpenDevice | None
    timed: bool

    def __init__(self, key: int, queue: Queue, counters: dict[OpenDevice, MemoryCounters], most: int) -> None:
        self.opened = opened = _device_of(queue)
        if opened is not None and opened not in counters:
            counters[opened] = MemoryCounters(opened.allocator.current)
        super().__init__(key, queue, None if opened is None else counters[opened])
        self.logs, self.timed = isinstance(queue, ExecutionLog), isinstance(queue, ExecutionLog | Timing)
        if isinstance(queue, ExecutionLog):
            self.mark = queue.last_work_number
        else:
            self.mark = queue.mark if isinstance(queue, Timing) else self._observe_next
        self.reached = 0  # `last_reached` at the end of the recording
        self.error: str = ""
        self.log: Callable[[Sequence[int]], list[tuple[int, int]]] | None = (
            _start_log(self, queue, most) if isinstance(queue, ExecutionLog) else None
        )
        self._unobserved: deque[ObservedTick] = deque()

    def is_done(self) -> bool:
        """Return True if the last recorded work is done or cannot be waited for."""
        if self.last is None:
            return True
        try:
            if self.log is not None:
                return bool(self.times([self.last])[0][1]) or self.queue.idle()
            return bool(self.queue.reached() >= self.last.tick)
        except FAILURES as error:
            self._note_error(error)
            return True

    def last_reached(self) -> int:
        """Return the tick, or with ExecutionLog the number of the work, up to which all is done; 0 if unknown."""
        if self.log is not None:
            return int(self.last) if self.last is not None and self.is_done() else 0
        try:
            return int(self.queue.reached())
        except FAILURES as error:
            self._note_error(error)
            return 0

    def times(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Return the logged begins and ends of pieces of work; 0 if not logged."""
        try:
            if self.log is not None:
                return self.log(numbers)
        except FAILURES as error:
            self._note_error(error)
        return [(0, 0)] * len(numbers)

    def _note_error(self, error: Exception) -> None:
        self.error = self.error or str(error)

    def _observe_next(self) -> ObservedTick:
        self.observe_ticks()
        self._unobserved.append(tick := ObservedTick(self.queue.signal()))
        return tick

    def observe_ticks(self) -> None:
        """Timestamp the ticks that a queue that cannot time has reached."""
        try:
            reached = self.queue.reached()
        except FAILURES as error:
            self._note_error(error)
            return
        with contextlib.suppress(IndexError):  # none left, or another thread was faster
            while True:
                first = self._unobserved.popleft()
                if first.tick > reached:
                    self._unobserved.appendleft(first)
                    return
                first.at = perf_counter_ns()


class Recorder(_entries.Entries, observers.Observer, observers.Tracer):
    """Keeps the last `most` entries from `begin` to `finish`. Each entry is added by the thread that it describes."""

    began: int
    ended: int

    tracks_deletions = False

    def __init__(self, most: int, *, wait_until_completed: bool = False) -> None:
        super().__init__(most, _thread_state, _is_internal, wait_until_completed)
        self.tracks: dict[int, QueueTrack] = {}  # by key
        self._most = most
        self.began = self.ended = 0
        self.threads: dict[int, ThreadInfo] = {}  # by key
        self._keys = count()
        self.clock_samples: dict[OpenDevice, list[ClockSample]] = {}
        self.open_ranges: dict[ThreadInfo, list[tuple[str, int]]] = {}  # nested ranges: names and begins
        self.started_ranges: dict[int, tuple[int, str, int]] = {}  # other ranges by number: thread key, name, begin
        self._counters: dict[OpenDevice, MemoryCounters] = {}
        self._tool = _RangeTool(self)

    def begin(self) -> None:
        global _recording  # noqa: PLW0603 -- a tuple replaced as a whole, so readers need no lock
        with _changing:
            _recording = (*_recording, self)
        self.threads |= _threads.items()
        self.began = perf_counter_ns()
        ranges.attach(self._tool)
        observers.add(self)
        observers.add_tracer(self)

    def finish(self, limit: float) -> None:
        """Stop recording, and wait up to `limit` seconds for unfinished work."""
        global _recording  # noqa: PLW0603 -- as above
        with _changing:
            _recording = tuple(each for each in _recording if each is not self)
        for track in tuple(self.queue_tracks.values()):
            self.count(track)
        observers.remove_tracer(self)
        observers.remove(self)
        ranges.detach(self._tool)
        self.ended = self.ended or perf_counter_ns()  # already set if an earlier call was interrupted
        self.close()
        end = time.monotonic() + limit
        for track in tuple(self.queue_tracks.values()):
            while (
                not track.is_done() and (track.opened is None or not track.opened.unusable) and time.monotonic() < end
            ):
                time.sleep(_POLL)
            if not track.timed:
                track.observe_ticks()
            track.reached = track.last_reached()
            uses_marks = track.timed and not track.logs and track.last is not None
            if uses_marks and track.opened is not None and track.opened not in self.clock_samples:
                self.clock_samples[track.opened] = sample_clock(track.queue)

    def after_fork_in_child(self) -> None:
        """Discard the parent's entries in a forked child. `observers` removes the recorder itself."""
        global _recording, _changing
        _recording, _changing = (), threading.RLock()
        ranges.detach_in_child(self._tool)
        self.drop()

    def drop(self) -> None:
        """Discard all entries and the queues' logs."""
        self.clear()
        self.tracks.clear()

    def track(self, queue: Queue) -> QueueTrack:
        """Return the queue's track, created at its first use."""
        found: QueueTrack | None = self.queue_tracks.get(id(queue))
        if found is None:
            found = self.queue_tracks.setdefault(
                id(queue), QueueTrack(next(self._keys), queue, self._counters, self._most)
            )
            self.tracks[found.key] = found
            self.count(found)
        return found

    def _complete(self, track: QueueTrack, end: Any) -> None:
        """Wait for queued work. If it failed, the next synchronization raises the error, as without a trace."""
        try:
            track.queue.wait(track.queue.signal() if track.logs else end.tick)
        except DeviceError as failure:
            if track.opened is not None:
                track.opened.allocator.failures.setdefault(track.queue.handle, without_frames(failure))
        except ForebayError:  # called from the queue's own thread, which cannot wait for itself
            return
        track.observe_ticks()

    # Host calls

    def device_synchronized(self, opened: OpenDevice) -> None:
        self.note(MOMENT, f"synchronize {opened.device}")

    def event_created(self, event: Event) -> None:
        self.note(MOMENT, "", id(event))  # distinguishes it from deleted events with the same `id`

    def event_recorded(self, event: Event, stream: Stream) -> None:
        self.note(MOMENT, "record event", id(event), self.track(stream.queue))

    def event_waited(self, event: Event, stream: Stream) -> None:
        self.note(MOMENT, "wait for event", id(event), self.track(stream.queue))

    def event_synchronized(self, event: Event) -> None:
        self.note(MOMENT, "synchronize event", id(event))

    def event_queried(self, event: Event, done: bool) -> None:
        self.note(MOMENT, "query event: done" if done else "query event: not yet", id(event))

    def allocated(self, storage: Storage, queue: int) -> None:
        """Sample the counters. Frees show at the next allocation or wait: tracking each would cost a microsecond."""
        found = storage.opened.queue_with_handle(queue)
        if found is not None:
            self.count(self.track(found))

    def add_range(self, ended: Range) -> None:
        self.add(RANGE, (_thread_state.key, *ended))


class _RangeTool:
    """The recorder's tool for ranges."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._open, self._started = recorder.open_ranges, recorder.started_ranges

    def push(self, name: str) -> None:
        self._open.setdefault(_thread_state.info, []).append((name, perf_counter_ns()))

    def pop(self, ended: Range) -> None:
        if nested := self._open.get(_thread_state.info):  # else it began before the recording
            nested.pop()
            if not nested:  # keep no entry for threads that have ended
                self._open.pop(_thread_state.info, None)
        self._recorder.add_range(ended)

    def start(self, number: int, name: str) -> None:
        self._started[number] = _thread_state.key, name, perf_counter_ns()

    def end(self, number: int, ended: Range) -> None:
        self._started.pop(number, None)
        self._recorder.add_range(ended)

    def mark(self, at: Range) -> None:
        self._recorder.add_range(at)


def _device_of(queue: Queue) -> OpenDevice | None:
    found = open_device.open_devices().devices
    return next((opened for opened in found if opened.queue_with_handle(queue.handle) is queue), None)


def _start_log(track: QueueTrack, queue: ExecutionLog, most: int) -> Callable[[Sequence[int]], list[tuple[int, int]]]:
    """Start a log of `most` pieces of work, or fewer if memory is short. Returns an empty log if the queue cannot."""
    most = min(most, _MAX_LOGGED)
    while most:
        try:
            return queue.log(most)
        except MemoryError:
            most //= 4
        except DeviceError as error:  # the log of the device is not available
            track.error = str(error)
            break
        except ForebayError:  # the queue was closed
            break
        except FAILURES as error:  # the backend is faulty
            track.error = str(error)
            break
    return lambda numbers: [(0, 0)] * len(numbers)


_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_TESTING = _PACKAGE + "testing" + os.sep  # its functions count as the program's
_WRAPPERS = frozenset((contextlib.__file__, functools.__file__))


def _is_internal(file: str) -> bool:
    return file in _WRAPPERS or (file.startswith(_PACKAGE) and not file.startswith(_TESTING))
