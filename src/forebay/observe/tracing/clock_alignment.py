"""Alignment of a device's clock with the host's, as a queue only reports the time between two marks.

A mark is never reached before the host requested it, so every mark gives a lower bound of the offset between the
clocks. The largest bound is off by the latency of the fastest mark, about a microsecond.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from time import perf_counter_ns
from typing import NamedTuple, cast

from forebay.backends.plugins.contract_checks import FAILURES
from forebay.runtime.base import capture_state
from forebay.spi import Mark, Queue, Timing

__all__ = ["Clock", "ClockSample", "sample_clock"]

_SAMPLES = 16
_TIMEOUT = 0.01  # seconds for all samples


class ClockSample(NamedTuple):
    """A reached mark, and the host's time at which it was requested (`perf_counter_ns`)."""

    mark: Mark
    requested: int


def sample_clock(queue: Queue) -> list[ClockSample]:
    """Return marks with as little latency as possible; none if the queue is busy, capturing or closed."""
    samples: list[ClockSample] = []
    end = time.monotonic() + _TIMEOUT
    try:
        if not queue.idle() or capture_state.capture_of(queue) is not None:
            return samples
        for _ in range(_SAMPLES):
            requested = perf_counter_ns()
            mark = cast("Timing", queue).mark()
            while queue.reached() < mark.tick:
                if time.monotonic() > end:
                    return samples
            samples.append(ClockSample(mark, requested))
    except (RuntimeError, *FAILURES):  # the queue was closed, or its backend is faulty
        pass
    return samples


class Clock:
    """Converts marks of a device to the host's nanoseconds."""

    def __init__(self, queue: Timing, samples: Iterable[ClockSample]) -> None:
        samples = list(samples)
        first = samples[0].mark
        self._elapsed: dict[int, int] = {}  # by the `id` of the mark: nanoseconds since the first mark
        self._marks = [each.mark for each in samples]  # kept alive, so that no other mark gets their `id`
        for mark, _ in samples:
            if id(mark) not in self._elapsed:
                self._elapsed[id(mark)] = round(queue.elapsed_ms(first, mark) * 1e6)
        self._offset = max(requested - self._elapsed[id(mark)] for mark, requested in samples)

    def time(self, mark: Mark) -> int:
        """Return when a mark of the samples was reached, as `time.perf_counter_ns`."""
        return self._elapsed[id(mark)] + self._offset
