"""Log of the times at which the recent work of a queue ran; see `spi.ExecutionLog`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from weakref import WeakSet

__all__ = ["WorkLog", "WorkTimes"]


class WorkTimes:
    """The log that a caller requested. It outlives the queue."""

    def __init__(self, log: WorkLog, most: int) -> None:
        self._log = log
        self.most: int = most

    def __call__(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Return the begin and end times of pieces of work."""
        first = self._log.last - self.most + 1
        return [self._log.times.get(number, (0, 0)) if number >= first else (0, 0) for number in map(_checked, numbers)]


class WorkLog:
    """Numbers and times of a queue's pieces of work. Each piece is a command buffer of its own while it is logged."""

    def __init__(self) -> None:
        self.last: int = 0  # number of the last piece
        self.times: dict[int, tuple[int, int]] = {}  # nanoseconds of time.perf_counter_ns, by number
        self._views: WeakSet[WorkTimes] = WeakSet()
        self._first = 0  # number of the first piece that may be in `times`

    @property
    def active(self) -> bool:
        return bool(self._views)

    def view(self, most: int) -> WorkTimes:
        """Return a log of the last `most` pieces from now on."""
        if (most := index(most)) < 1:
            raise ValueError(f"a log must hold at least 1 piece of work, not {most}")
        if not self._views:
            self.times.clear()
            self._first = self.last + 1
        view = WorkTimes(self, most)
        self._views.add(view)
        return view

    def next_number(self) -> int:
        """Return the number of a new piece, and forget those that no view keeps."""
        self.last += 1
        if self._views:
            keep = max((view.most for view in self._views), default=0)
            while self._first <= self.last - keep:
                self.times.pop(self._first, None)
                self._first += 1
        return self.last

    def note(self, number: int, begin: int, end: int) -> None:
        """Note when a piece ran; its end is 0 while it runs."""
        if self._views and number >= self._first:
            self.times[number] = begin, end


def _checked(number: object) -> int:
    if not 0 <= (found := index(number)) < 1 << 63:  # type: ignore[arg-type]  # raises TypeError
        raise ValueError(f"the number of a piece of work must be from 0 to 2**63 - 1, not {found}")
    return found
