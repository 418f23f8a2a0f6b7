"""Stream pool: a fixed number of streams per priority, handed out round-robin.

# Note [Stream ids]
PyTorch creates 32 streams for each priority at most and hands them out in turn, so that the 33rd stream of a program is
its first one: work that a program believes to be parallel is ordered, and memory is reused, as on a GPU. Ids have
PyTorch's bits, because programs pass them as numbers (`torch.Stream(stream_id=...)`), and because the order of its hash
tables depends on them: Note [Order of iteration]. A handle of the driver, which names an external stream, is even, and
an id of a pool odd. Rejected: a queue of its own for each stream, which only the CPU device has.
Test: tests/names/test_scenes.py
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import cycle

from forebay.spi import DeviceProps, Queue

__all__ = ["MOST_URGENT", "StreamPool"]

MOST_URGENT = -3  # of PyTorch's four priorities; 0 is the least urgent


class StreamPool:
    """A pool of `size` streams per priority. Each queue is created on first use.

    Stream ids are PyTorch's (Note [Stream ids]): 1 in the lowest bit, four bits for the priority, then the number. With
    a single priority, ids count from 1, as for MPS. The default stream has id 0; an external stream's id is its handle.
    """

    def __init__(self, make: Callable[[int], Queue], size: int, priorities: int = 1 - MOST_URGENT) -> None:
        self._make, self._size, self._levels = make, size, priorities
        self._turns = [cycle(self._ids_of(level)) for level in range(priorities)]
        self._queues: dict[int, Queue] = {}  # by stream id
        self._ids: dict[int, int] = {0: 0}  # by handle
        self._lock = threading.RLock()

    @classmethod
    def for_device(cls, props: DeviceProps, make: Callable[[int], Queue]) -> StreamPool | None:
        """Return a new pool, or None if each stream of the device has its own queue."""
        return cls(make, props.pooled_streams, props.stream_priorities) if props.pooled_streams else None

    def next_queue(self, priority: int) -> Queue:
        """Return the next queue of the priority, clamped to the supported range."""
        level, levels = -priority, self._levels
        if not 0 <= level < levels:
            level = max(0, min(level, levels - 1))
        stream_id = next(self._turns[level])
        return self._queues.get(stream_id) or self.queue_with_id(stream_id)

    def _ids_of(self, level: int) -> list[int]:
        """Return the stream ids of a priority, in the order in which they are used."""
        if self._levels == 1:
            return [number + 1 for number in range(self._size)]
        return [number << 5 | (level + 1) << 1 | 1 for number in range(self._size)]

    def queue_with_id(self, stream_id: int) -> Queue:
        """Return the queue of the stream id, creating it on first use. Raises ValueError for an invalid id."""
        found = self._queues.get(stream_id)
        if found is not None:
            return found
        level = self._level_of(stream_id)
        with self._lock:
            found = self._queues.get(stream_id)
            if found is None:
                found = self._make(-level)
                self._ids[found.handle] = stream_id
                self._queues[stream_id] = found
        return found

    def is_pool_id(self, stream_id: int) -> bool:
        """Return True if the id has the form of a pool stream's id. Otherwise it may be a handle."""
        return self._levels == 1 or stream_id & 1 == 1

    def _level_of(self, stream_id: int) -> int:
        number, level = (stream_id >> 5, (stream_id >> 1 & 15) - 1) if self._levels > 1 else (stream_id - 1, 0)
        if not (self.is_pool_id(stream_id) and 0 <= number < self._size and 0 <= level < self._levels):
            raise ValueError(f"{stream_id} is not a valid stream id on this device")
        return level

    def stream_id_of(self, handle: int) -> int:
        """Return the stream id of the queue with the handle; the handle itself for an external stream."""
        return self._ids.get(handle, handle)
