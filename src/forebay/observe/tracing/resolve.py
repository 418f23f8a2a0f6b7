"""Resolution of a recorder's entries: numbers to names, code offsets to source lines, device times to host times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from types import CodeType
from typing import Any, NamedTuple, cast

from forebay.backends.plugins.contract_checks import FAILURES
from forebay.observe.ranges.range import Range
from forebay.observe.tracing._entries import MEMORY, MOMENT, OPERATION, RANGE, UNKNOWN, WAITED
from forebay.observe.tracing.clock_alignment import Clock, ClockSample
from forebay.observe.tracing.model import Moment, Place, Sample, Slice, TraceData, Track
from forebay.observe.tracing.recorder import ObservedTick, QueueTrack, Recorder
from forebay.runtime.devices.open_device import OpenDevice
from forebay.spi import Timing

__all__ = ["resolve"]

_NEVER = 1 << 63


class _Operation(NamedTuple):
    """An entry of the recorder, with names."""

    entry_type: int
    number: int
    thread: int
    requested: int
    queued: int
    code: CodeType | None
    offset: int
    category: str
    name: str
    nbytes: int
    queue: QueueTrack  # this field and the next are keys in the entry, resolved by `_Resolver._named`
    other: QueueTrack | None
    begin: Any  # marks; with ExecutionLog, the numbers of the last work before the operation and of the last work in it
    end: Any
    captured: bool = False

    def reached(self, mark: Any) -> bool:
        return mark is not None and (mark if self.queue.logs else mark.tick) <= self.queue.reached


def resolve(recorder: Recorder, *, intervals: bool = True, events: bool = True) -> TraceData:
    """Resolve the entries of a finished recorder.

    Without `intervals`, an operation is a moment at its end; without `events`, moments are left out.
    """
    return _Resolver(recorder, intervals=intervals, events=events).trace


def _queue_order(each: _Operation) -> int:
    """Return a sort key: the order in which a queue executes its work."""
    if each.end is None:
        return _NEVER
    return cast("int", each.end if each.queue.logs else each.end.tick)


def _logged(queue: QueueTrack, operations: list[_Operation]) -> dict[int, tuple[int, int]]:
    """Return the times of the first and the last piece of work of each operation, by number."""
    begins = {each.begin + 1 for each in operations if each.begin is not None}
    numbers = sorted(begins | {each.end for each in operations if each.end is not None})
    return dict(zip(numbers, queue.times(numbers), strict=True))


class _Resolver:
    def __init__(self, recorder: Recorder, *, intervals: bool, events: bool) -> None:
        self.trace = TraceData(recorder.began, recorder.ended, lost=recorder.lost)
        self._recorder = recorder
        self._intervals, self._events = intervals, events
        self._clock_errors: dict[OpenDevice | None, str] = {}
        self._streams: dict[int, Track] = {}
        self._places: dict[tuple[int, int], Place] = {}
        entries: dict[int, list[Any]] = defaultdict(list)
        for entry in recorder.rows():
            entries[entry[0]].append(entry)
        self._operations([self._named(_Operation(*entry)) for entry in entries[OPERATION]])
        self._waits(entries[WAITED])
        self._moments(entries[MOMENT])
        self._ranges([(thread, Range(*fields)) for _, _, thread, *fields in entries[RANGE]])
        self._memory(entries[MEMORY])

    # Work of queues

    def _named(self, entry: _Operation) -> _Operation:
        tracks = self._recorder.tracks
        queue, other = tracks[cast("int", entry.queue)], tracks.get(cast("int", entry.other))
        begin, end = (None if mark is UNKNOWN else mark for mark in (entry.begin, entry.end))
        return entry._replace(queue=queue, other=other, begin=begin, end=end, captured=entry.begin is None)

    def _operations(self, operations: list[_Operation]) -> None:
        clocks = dict(self._clocks(operations))
        by_queue: dict[int, list[_Operation]] = defaultdict(list)
        for each in operations:
            by_queue[id(each.queue)].append(each)
        for some in by_queue.values():
            previous_end, queue = 0, some[0].queue
            clock = clocks.get(cast("OpenDevice", queue.opened))
            logged = _logged(queue, some) if queue.logs else {}
            queue.reached = max([queue.reached, *(number for number, (_, ended) in logged.items() if ended)])
            for each in sorted(some, key=_queue_order):
                if queue.logs:
                    begin, end = self._logged_times(each, logged, previous_end)
                else:
                    begin, end = self._times(each, clock, previous_end)
                previous_end = end or begin or previous_end
                self._operation(each, begin, end)

    def _clocks(self, operations: list[_Operation]) -> Iterator[tuple[OpenDevice, Clock]]:
        samples: dict[OpenDevice, list[ClockSample]] = defaultdict(list)
        queues: dict[OpenDevice, Timing] = {}
        for opened, own in self._recorder.clock_samples.items():
            samples[opened] += own
        for each in operations:
            uses_marks = each.queue.timed and not each.queue.logs
            if uses_marks and each.queue.opened is not None and each.end is not None:
                queues[each.queue.opened] = cast("Timing", each.queue.queue)
                marks = [mark for mark in (each.begin, each.end) if each.reached(mark)]
                samples[each.queue.opened] += (ClockSample(mark, each.requested) for mark in marks)
        for opened, queue in queues.items():
            if samples[opened]:
                try:
                    yield opened, Clock(queue, samples[opened])
                except FAILURES as error:  # a faulty backend must not affect the other devices
                    self._clock_errors[opened] = f"unknown: {error}"

    def _times(self, each: _Operation, clock: Clock | None, previous_end: int) -> tuple[int | None, int | None]:
        """Return when the operation began and ended, None if it has not. It cannot begin before `previous_end`."""
        if isinstance(each.end, ObservedTick):
            begin = max(each.requested, previous_end)
            return begin, max(each.end.at, begin) if each.end.at else None
        if clock is None or not each.reached(each.begin):
            return None, None
        begin = max(clock.time(each.begin), previous_end, each.requested)
        return begin, max(clock.time(each.end), begin) if each.reached(each.end) else None

    def _logged_times(
        self, each: _Operation, logged: dict[int, tuple[int, int]], previous_end: int
    ) -> tuple[int | None, int | None]:
        """Return as `_times`, from the log. An operation without work (a wait for a past tick) takes no time."""
        if each.begin is None or each.end is None:
            return None, None
        if each.begin == each.end:
            at = max(previous_end, each.requested)
            return at, at
        begin, end = logged[each.begin + 1][0], logged[each.end][1]
        # The log may have lost the begin of a long operation.
        begin = max(begin, previous_end, each.requested) if begin or end else 0
        return begin or None, max(end, begin) if end else None

    def _operation(self, each: _Operation, begin: int | None, end: int | None) -> None:
        number, stream, place = each.number + 1, self._stream(each.queue), self._place(each.code, each.offset)
        details: dict[str, str | int] = {"id": number, "device": stream.device, "stream": stream.number}
        if each.nbytes:
            details["bytes"] = each.nbytes
        if each.other is not None:
            other = self._stream(each.other)
            details["waits for"] = f"{other.device} {other.name}"
        if not each.queue.timed:
            details["timed by"] = "the host, when it observed the completion"
            self.trace.untimed.add(stream.device)
        if end is None:
            unknown = self._why_unknown(each)
            state = unknown or ("not begun" if begin is None else "not done")
            details["execution"] = "captured into a graph" if each.captured else state
            self.trace.unfinished += not (each.captured or each.end is None or (unknown and each.reached(each.end)))
        self.trace.operations += 1
        if self._intervals:
            queued = 0 if begin is None else number
            thread = self._thread(each.thread)
            self._slice(thread, each.name, each.category, each.requested, each.queued, details, place, leads_to=queued)
            if begin is not None:
                self._slice(stream, each.name, each.category, begin, end, details, place, comes_from=number)
        elif end is not None and self._events:
            self.trace.moments.append(Moment(stream, each.name, each.category, end, details, place))

    def _why_unknown(self, each: _Operation) -> str:
        """Return why the times of an operation are unknown; "" if they are known."""
        if each.queue.opened in self._clock_errors:
            return self._clock_errors[each.queue.opened]
        if each.end is None or each.queue.error:
            return f"unknown: {each.queue.error or 'the queue returned no mark'}"
        if each.queue.logs and each.reached(each.end):
            return "unknown: no longer in the queue's log"
        return ""

    def _slice(self, *fields: Any, **more: Any) -> None:
        self.trace.slices.append(Slice(*fields, **more))

    # Host calls

    def _waits(self, entries: list[Any]) -> None:
        for _, _, thread, since, until, code, offset, _, _, queue in entries if self._intervals else ():
            stream = self._stream(self._recorder.tracks[queue])
            details = {"device": stream.device, "stream": stream.number}
            self._slice(self._thread(thread), "wait", "host", since, until, details, self._place(code, offset))

    def _moments(self, entries: list[Any]) -> None:
        """Add the host's moments. Events are numbered separately, as a new event may have a deleted one's `id`."""
        numbers: dict[int, int] = {}
        fresh = count(1)
        for _, _, thread, _, now, code, offset, what, event, queue in entries if self._events else ():
            if not what or (event and event not in numbers):
                numbers[event] = next(fresh)
            if what:
                details: dict[str, str | int] = {"event": numbers[event]} if event else {}
                if queue >= 0:
                    stream = self._stream(self._recorder.tracks[queue])
                    details |= {"device": stream.device, "stream": stream.number}
                place = self._place(code, offset)
                self.trace.moments.append(Moment(self._thread(thread), what, "event", now, details, place))

    def _ranges(self, ended: list[tuple[int, Range]]) -> None:
        rows: list[int] = []  # when each row of ranges that may overlap becomes free
        started = tuple(self._recorder.started_ranges.values())
        unended = [(thread, Range(name, begin, _NEVER, 0, -1)) for thread, name, begin in started]
        for key, each in sorted([*ended, *unended], key=lambda each: each[1].begin):
            thread = self._thread(key)
            if each.depth >= 0:
                track = thread
            elif each.begin == each.end:
                self.trace.moments.append(Moment(thread, each.name, "range", each.begin))
                continue
            else:
                row = next((row for row, free in enumerate(rows) if free <= each.begin), len(rows))
                rows[row : row + 1] = [each.end]
                track = Track("ranges", "ranges", row)
            if self._intervals:
                self._slice(track, each.name, "range", each.begin, None if each.end == _NEVER else each.end)
        for info, names in self._recorder.open_ranges.items() if self._intervals else ():
            for name, begin in names:
                self._slice(self._thread(info.key), name, "range", begin, None)

    def _memory(self, entries: list[Any]) -> None:
        for _, _, at, queue, *counts in entries:
            if (opened := self._recorder.tracks[queue].opened) is None:
                continue
            self._device(opened)
            for name, value in zip(("allocated", "reserved"), counts, strict=True):
                self.trace.samples.append(Sample(str(opened.device), name, at, value))

    # Names

    def _device(self, opened: OpenDevice) -> None:
        self.trace.devices.setdefault(str(opened.device), opened.port.props.name)

    def _stream(self, queue: QueueTrack) -> Track:
        found = self._streams.get(id(queue))
        if found is None:
            number, opened = queue.queue.handle, queue.opened
            name = "default stream" if not number else f"stream {number}"
            if opened is not None:
                self._device(opened)
                if number and opened.stream_pool is not None:
                    name = f"stream {(number := opened.stream_pool.stream_id_of(number))}"
            found = Track("stream", name, number, "closed device" if opened is None else str(opened.device))
            self._streams[id(queue)] = found
        return found

    def _place(self, code: CodeType | None, offset: int) -> Place | None:
        if code is None:
            return None
        found = self._places.get((id(code), offset))
        if found is None:
            lines = [each[0] for each in code.co_positions()]
            line = lines[offset // 2] if offset // 2 < len(lines) else None
            found = Place(code.co_filename, code.co_qualname, line or code.co_firstlineno)
            self._places[id(code), offset] = found
        return found

    def _thread(self, key: int) -> Track:
        info = self._recorder.threads[key]
        return Track("thread", info.name, info.native_id)
