"""The streams of a device that has a fixed number of them, for each priority; who asks gets the next one in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

from penstock.spi import Queue

__all__ = ["MOST_URGENT", "StreamPool"]

MOST_URGENT = -3  # of PyTorch's four priorities; 0 is the least


class StreamPool:
    """`size` streams of each priority, each made when it is first wanted.

    A stream's id says which it is, as in PyTorch: 1 in the lowest bit, four bits for the priority, then its number. The
    default stream has id 0, a stream of elsewhere its handle.
    """

    def __init__(self, make: Callable[[int], Queue], size: int) -> None:
        self._make, self._size = make, size
        self._turns = {priority: count() for priority in range(0, MOST_URGENT - 1, -1)}
        self._made: dict[int, Queue] = {}  # by id
        self._ids: dict[int, int] = {0: 0}  # by handle
        self._making = threading.RLock()

    def next(self, priority: int) -> Queue:
        """The next one of the priority, or of the nearest that there is."""
        priority = max(MOST_URGENT, min(priority, 0))
        return self.with_id((next(self._turns[priority]) % self._size) << 5 | (1 - priority) << 1 | 1)

    def with_id(self, stream_id: int) -> Queue:
        """The one of that id; ValueError where there can be none."""
        found = self._made.get(stream_id)
        if found is not None:
            return found
        number, level = stream_id >> 5, stream_id >> 1 & 15
        if not (stream_id & 1 and 0 <= number < self._size and 1 <= level <= 1 - MOST_URGENT):
            raise ValueError(f"{stream_id} is not the id of a stream of this device")
        with self._making:
            found = self._made.get(stream_id)
            if found is None:
                found = self._make(1 - level)
                self._ids[found.handle] = stream_id
                self._made[stream_id] = found
        return found

    def id_of(self, handle: int) -> int:
        return self._ids.get(handle, handle)
