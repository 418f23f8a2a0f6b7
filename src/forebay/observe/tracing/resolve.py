"""What a recorder has, told: names for numbers, lines for places in code, the host's time for marks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from types import CodeType
from typing import Any, NamedTuple, cast

from forebay.backends.plugins.contract_checks import FAILURES
from forebay.observe.ranges.ranges import Range
from forebay.observe.tracing._entries import MEMORY, MOMENT, OPERATION, RANGE, UNKNOWN, WAITED
from forebay.observe.tracing.clock_alignment import Asked, Clock
from forebay.observe.tracing.model import Moment, Place, Sample, Slice, Traced, Track
from forebay.observe.tracing.recorder import Line, Recorder, Seen
from forebay.runtime.devices.open_device import OpenDevice
from forebay.spi import Timing

__all__ = ["tell"]

_NEVER = 1 << 63


class _Operation(NamedTuple):
    """A recorder's entry, with names."""

    about: int
    number: int
    thread: int
    asked: int
    queued: int
    code: CodeType | None
    at: int
    what: str
    name: str
    nbytes: int
    line: Line  # a number, and so is the next, until `_Telling` has looked them up
    other: Line | None
    begin: Any  # marks; where the queue logs, the number of the last piece of work before it, and of its own last one
    end: Any
    captured: bool = False

    def reached(self, mark: Any) -> bool:
        return mark is not None and (mark if self.line.logs else mark.tick) <= self.line.reached


def tell(recorder: Recorder, *, intervals: bool = True, events: bool = True) -> Traced:
    """All that a finished recorder has: what took time, or what happened, or both.

    Without intervals it is something that happened when an operation was done.
    """
    return _Telling(recorder, intervals=intervals, events=events).told


def _order(each: _Operation) -> int:
    """A queue does its work in it."""
    if each.end is None:
        return _NEVER
    return cast("int", each.end if each.line.logs else each.end.tick)


class _Telling:
    def __init__(self, recorder: Recorder, *, intervals: bool, events: bool) -> None:
        self.told = Traced(recorder.began, recorder.ended, lost=recorder.lost)
        self._recorder = recorder
        self._intervals, self._events = intervals, events
        self._untold: dict[OpenDevice | None, str] = {}  # devices whose clock does not tell, and why
        self._streams: dict[int, Track] = {}
        self._lines: dict[tuple[int, int], Place] = {}
        entries: dict[int, list[Any]] = defaultdict(list)
        for entry in recorder.rows():
            entries[entry[0]].append(entry)
        self._work([self._named(_Operation(*entry)) for entry in entries[OPERATION]])
        self._waits(entries[WAITED])
        self._moments(entries[MOMENT])
        self._ranges([(me, Range(*fields)) for _, _, me, *fields in entries[RANGE]])
        self._memory(entries[MEMORY])

    # What queues did

    def _named(self, entry: _Operation) -> _Operation:
        lines = self._recorder.by_key
        line, other = lines[cast("int", entry.line)], lines.get(cast("int", entry.other))
        begin, end = (None if mark is UNKNOWN else mark for mark in (entry.begin, entry.end))
        return entry._replace(line=line, other=other, begin=begin, end=end, captured=entry.begin is None)

    def _work(self, operations: list[_Operation]) -> None:
        clocks = dict(self._clocks(operations))
        by_line: dict[int, list[_Operation]] = defaultdict(list)
        for each in operations:
            by_line[id(each.line)].append(each)
        for some in by_line.values():  # a queue does them in the order of the marks behind them
            before, line = 0, some[0].line
            clock = clocks.get(cast("OpenDevice", line.opened))
            if line.logs:
                ended = (each.end for each in some if each.end is not None and line.times(each.end)[1])
                line.reached = max(line.reached, max(ended, default=0))
            for each in sorted(some, key=_order):
                begin, end = self._logged(each, before) if line.logs else self._times(each, clock, before)
                before = end or begin or before
                self._operation(each, begin, end)

    def _clocks(self, operations: list[_Operation]) -> Iterator[tuple[OpenDevice, Clock]]:
        asked: dict[OpenDevice, list[Asked]] = defaultdict(list)
        queues: dict[OpenDevice, Timing] = {}
        for opened, tried in self._recorder.tried.items():
            asked[opened] += tried
        for each in operations:
            by_marks = each.line.timed and not each.line.logs
            if by_marks and each.line.opened is not None and each.end is not None:
                queues[each.line.opened] = cast("Timing", each.line.queue)
                marks = [mark for mark in (each.begin, each.end) if each.reached(mark)]
                asked[each.line.opened] += (Asked(mark, each.asked) for mark in marks)
        for opened, queue in queues.items():
            if asked[opened]:
                try:
                    yield opened, Clock(queue, asked[opened])
                except FAILURES as error:  # of a backend; what other devices did is told all the same
                    self._untold[opened] = f"not known: {error}"

    def _times(self, each: _Operation, clock: Clock | None, before: int) -> tuple[int | None, int | None]:
        """When it began and ended; None where it has not. Nothing begins before what is before it in its queue ends."""
        if isinstance(each.end, Seen):
            begin = max(each.asked, before)
            return begin, max(each.end.at, begin) if each.end.at else None
        if clock is None or not each.reached(each.begin):
            return None, None
        begin = max(clock.time(each.begin), before, each.asked)
        return begin, max(clock.time(each.end), begin) if each.reached(each.end) else None

    def _logged(self, each: _Operation, before: int) -> tuple[int | None, int | None]:
        """The same. What gave the queue no work, as there was nothing left to wait for, was done at once."""
        if each.begin is None or each.end is None:
            return None, None
        if each.begin == each.end:
            at = max(before, each.asked)
            return at, at
        begin, end = each.line.times(each.begin + 1)[0], each.line.times(each.end)[1]
        begin = max(begin, before, each.asked) if begin or end else 0  # of a long one the log may not have it
        return begin or None, max(end, begin) if end else None

    def _operation(self, each: _Operation, begin: int | None, end: int | None) -> None:
        number, stream, place = each.number + 1, self._stream(each.line), self._place(each.code, each.at)
        details: dict[str, str | int] = {"id": number, "device": stream.device, "stream": stream.number}
        if each.nbytes:
            details["bytes"] = each.nbytes
        if each.other is not None:
            other = self._stream(each.other)
            details["waits for"] = f"{other.device} {other.name}"
        if not each.line.timed:
            details["timed by"] = "the host: it was done by then"
            self.told.untimed.add(stream.device)
        if end is None:
            forgotten = "not known: its queue did too much since" if each.line.logs and each.reached(each.end) else ""
            wrong = f"not known: {each.line.wrong or 'its queue gave no mark'}"
            untold = self._untold.get(each.line.opened, wrong if each.end is None or each.line.wrong else forgotten)
            state = untold or ("not begun" if begin is None else "not done")
            details["execution"] = "recorded for a graph" if each.captured else state
            self.told.unfinished += not (each.captured or each.end is None or (untold and each.reached(each.end)))
        self.told.operations += 1
        if self._intervals:
            queued = 0 if begin is None else number
            thread = self._thread(each.thread)
            self._slice(thread, each.name, each.what, each.asked, each.queued, details, place, leads_to=queued)
            if begin is not None:
                self._slice(stream, each.name, each.what, begin, end, details, place, comes_from=number)
        elif end is not None and self._events:
            self.told.moments.append(Moment(stream, each.name, each.what, end, details, place))

    def _slice(self, *fields: Any, **more: Any) -> None:
        self.told.slices.append(Slice(*fields, **more))

    # What the host did

    def _waits(self, entries: list[Any]) -> None:
        for _, _, thread, since, until, code, at, _, _, line in entries if self._intervals else ():
            stream = self._stream(self._recorder.by_key[line])
            details = {"device": stream.device, "stream": stream.number}
            self._slice(self._thread(thread), "wait", "host", since, until, details, self._place(code, at))

    def _moments(self, entries: list[Any]) -> None:
        """Events have numbers of their own, as another may have an event's `id` when that has gone."""
        numbers: dict[int, int] = {}
        fresh = count(1)
        for _, _, thread, _, now, code, at, what, event, line in entries if self._events else ():
            if not what or (event and event not in numbers):
                numbers[event] = next(fresh)
            if what:
                details: dict[str, str | int] = {"event": numbers[event]} if event else {}
                if line >= 0:
                    stream = self._stream(self._recorder.by_key[line])
                    details |= {"device": stream.device, "stream": stream.number}
                place = self._place(code, at)
                self.told.moments.append(Moment(self._thread(thread), what, "event", now, details, place))

    def _ranges(self, ended: list[tuple[int, Range]]) -> None:
        free: list[int] = []  # since when, of each row of those that may overlap
        started = [(me, Range(name, at, _NEVER, 0, -1)) for me, name, at in tuple(self._recorder.started.values())]
        for me, each in sorted([*ended, *started], key=lambda each: each[1].begin):
            thread = self._thread(me)
            if each.depth >= 0:
                track = thread
            elif each.begin == each.end:
                self.told.moments.append(Moment(thread, each.name, "range", each.begin))
                continue
            else:
                row = next((row for row, since in enumerate(free) if since <= each.begin), len(free))
                free[row : row + 1] = [each.end]
                track = Track("ranges", "ranges", row)
            if self._intervals:
                self._slice(track, each.name, "range", each.begin, None if each.end == _NEVER else each.end)
        for whose, names in self._recorder.open_ranges.items() if self._intervals else ():
            for name, begin in names:
                self._slice(self._thread(whose.key), name, "range", begin, None)

    def _memory(self, entries: list[Any]) -> None:
        for _, _, at, line, *counts in entries:
            if (opened := self._recorder.by_key[line].opened) is None:
                continue
            self._device(opened)
            for name, value in zip(("allocated", "reserved"), counts, strict=True):
                self.told.samples.append(Sample(str(opened.device), name, at, value))

    # Names

    def _device(self, opened: OpenDevice) -> None:
        self.told.devices.setdefault(str(opened.device), opened.port.props.name)

    def _stream(self, line: Line) -> Track:
        found = self._streams.get(id(line))
        if found is None:
            number, opened = line.queue.handle, line.opened
            name = "default stream" if not number else f"stream {number}"
            if opened is not None:
                self._device(opened)
                if number and opened.stream_pool is not None:
                    name = f"stream {(number := opened.stream_pool.id_of(number))}"
            found = Track("stream", name, number, "a device of before" if opened is None else str(opened.device))
            self._streams[id(line)] = found
        return found

    def _place(self, code: CodeType | None, at: int) -> Place | None:
        if code is None:
            return None
        found = self._lines.get((id(code), at))
        if found is None:
            lines = [each[0] for each in code.co_positions()]
            line = lines[at // 2] if at // 2 < len(lines) else None
            found = Place(code.co_filename, code.co_qualname, line or code.co_firstlineno)
            self._lines[id(code), at] = found
        return found

    def _thread(self, key: int) -> Track:
        me = self._recorder.people[key]
        return Track("thread", me.name, me.native_id)
