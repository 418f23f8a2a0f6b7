"""The streams of a device that has a fixed number of them, for each priority; who asks gets the next one in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

from forebay.spi import DeviceProps, Queue

__all__ = ["MOST_URGENT", "StreamPool"]

MOST_URGENT = -3  # of PyTorch's four priorities; 0 is the least


class StreamPool:
    """`size` streams of each of so many priorities, each made when it is first wanted.

    A stream's id says which it is, as in PyTorch: 1 in the lowest bit, four bits for the priority, then its number.
    With one priority, streams are numbered from 1 on, as MPS's. The default stream has id 0, a stream of elsewhere its
    handle.
    """

    def __init__(self, make: Callable[[int], Queue], size: int, priorities: int = 1 - MOST_URGENT) -> None:
        self._make, self._size, self._levels = make, size, priorities
        self._turns = [count() for _ in range(priorities)]
        self._made: dict[int, Queue] = {}  # by id
        self._ids: dict[int, int] = {0: 0}  # by handle
        self._making = threading.RLock()

    @classmethod
    def of(cls, props: DeviceProps, make: Callable[[int], Queue]) -> StreamPool | None:
        """The device's; None where each stream has a queue of its own."""
        return cls(make, props.pooled_streams, props.stream_priorities) if props.pooled_streams else None

    def next(self, priority: int) -> Queue:
        """The next one of the priority, or of the nearest that there is."""
        level = max(0, min(-priority, self._levels - 1))
        number = next(self._turns[level]) % self._size
        return self.with_id(number + 1 if self._levels == 1 else number << 5 | (level + 1) << 1 | 1)

    def with_id(self, stream_id: int) -> Queue:
        """The one of that id; ValueError where there can be none."""
        found = self._made.get(stream_id)
        if found is not None:
            return found
        level = self._level_of(stream_id)
        with self._making:
            found = self._made.get(stream_id)
            if found is None:
                found = self._make(-level)
                self._ids[found.handle] = stream_id
                self._made[stream_id] = found
        return found

    def numbers(self, stream_id: int) -> bool:
        """Whether it is a number of the pool's, be there such a stream or not; else it may be a handle."""
        return self._levels == 1 or stream_id & 1 == 1

    def _level_of(self, stream_id: int) -> int:
        number, level = (stream_id >> 5, (stream_id >> 1 & 15) - 1) if self._levels > 1 else (stream_id - 1, 0)
        if not (self.numbers(stream_id) and 0 <= number < self._size and 0 <= level < self._levels):
            raise ValueError(f"{stream_id} is not the id of a stream of this device")
        return level

    def id_of(self, handle: int) -> int:
        return self._ids.get(handle, handle)
