"""The times in which the GPU ran work, for its utilization."""

from __future__ import annotations

import time
from collections import deque

__all__ = ["BusyTimes"]

_WINDOW = 1.0  # seconds


class BusyTimes:
    """Times of the recent command buffers of a port. Work of other processes is unknown."""

    def __init__(self) -> None:
        self._spans = deque[tuple[float, float]](maxlen=4096)

    def add(self, begin: float, end: float) -> None:
        """Add a time in seconds of time.monotonic()."""
        self._spans.append((begin, end))

    def share(self, now: float | None = None) -> float:
        """Return the fraction of the last second in which work ran, 0 to 1.

        >>> times = BusyTimes()
        >>> times.add(9.0, 9.25), times.add(9.0, 9.5), times.add(9.75, 10.0)
        (None, None, None)
        >>> times.share(now=10.0)
        0.75
        """
        now = time.monotonic() if now is None else now
        busy, until = 0.0, now - _WINDOW
        for begin, end in sorted(tuple(self._spans)):  # noqa: C414 -- another thread may add one
            if (last := min(end, now)) > (first := max(begin, until)):
                busy += last - first
                until = last
        return min(busy / _WINDOW, 1.0)
