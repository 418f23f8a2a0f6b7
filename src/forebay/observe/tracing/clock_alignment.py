"""The clock of a device beside the host's: a queue only tells how long it took from one mark to another.

No mark is reached before the host asked for it, so the difference of the clocks is at least what each mark says; the
most that one says is right but for what the quickest of them took, about a microsecond.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from time import perf_counter_ns
from typing import NamedTuple, cast

from forebay.backends.plugins.contract_checks import FAILURES
from forebay.runtime.base import capture_state
from forebay.spi import Mark, Queue, Timing

__all__ = ["Asked", "Clock", "Tried", "tries"]

_TRIES = 16
_PATIENCE = 0.01  # seconds for all of them


class Asked(NamedTuple):
    """A mark that was reached, not before then."""

    mark: Mark
    since: int


Tried = list[Asked]


def tries(queue: Queue) -> Tried:
    """Some marks that took as little time as can be; none of a queue that has something to do, or was closed."""
    found: Tried = []
    end = time.monotonic() + _PATIENCE
    try:
        if not queue.idle() or capture_state.capture_of(queue) is not None:
            return found
        for _ in range(_TRIES):
            since = perf_counter_ns()
            mark = cast("Timing", queue).mark()
            while queue.reached() < mark.tick:
                if time.monotonic() > end:
                    return found
            found.append(Asked(mark, since))
    except (RuntimeError, *FAILURES):  # it was closed, or its backend is wrong
        pass
    return found


class Clock:
    """Turns a device's marks into the host's nanoseconds."""

    def __init__(self, queue: Timing, asked: Iterable[Asked]) -> None:
        asked = list(asked)
        first = asked[0].mark
        self._since: dict[int, int] = {}  # by mark: nanoseconds from the first one
        self._marks = [each.mark for each in asked]  # so that no other has the `id` of one
        for mark, _ in asked:
            if id(mark) not in self._since:
                self._since[id(mark)] = round(queue.elapsed_ms(first, mark) * 1e6)
        self._ahead = max(since - self._since[id(mark)] for mark, since in asked)
        self._queue, self._first = queue, first

    def time(self, mark: Mark) -> int:
        """When it was reached, as `time.perf_counter_ns` tells it; of a mark that it was shown."""
        return self._since[id(mark)] + self._ahead
