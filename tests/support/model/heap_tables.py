"""Tables and statistics of a device with heaps, and the device below."""

from __future__ import annotations

from itertools import count

from support.model.heap_buffers import Buffer, Heap, HeapPool, Row
from support.model.pool import Counter

__all__ = ["HeapLayout", "HeapTables"]

HeapLayout = dict[tuple[int, str], list[tuple[int, int, list[Row]]]]  # heaps by queue and pool name
_COUNTED = ("allocation", "allocated_bytes", "active_bytes", "segment", "reserved_bytes")


class HeapTables:
    """Tables of heaps and the operations on them, without policy.

    `busy` are the queues with unfinished work; `others` is the device memory outside heaps, in bytes. The device
    allocates at most `capacity` bytes (None: unlimited) and refuses the next `refusals` heaps.
    """

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.pools: dict[tuple[int, str], HeapPool] = {}
        self.counters = {key: Counter() for key in _COUNTED}
        self.busy: set[int] = set()
        self.others = 0
        self.refusals = 0
        self._numbers = count()  # of heaps

    @property
    def reserved(self) -> int:
        return sum(heap.size for pool in self.pools.values() for heap in pool.heaps)

    @property
    def driver(self) -> int:
        """All memory allocated from the device."""
        return self.reserved + self.others

    @property
    def current_allocated(self) -> int:
        return self.counters["allocated_bytes"].current

    def statistics(self) -> dict[str, int]:
        """Return all statistics and the driver's total."""
        parts = ("current", "peak", "allocated", "freed")
        flat = {f"{key}.{part}": getattr(each, part) for key, each in self.counters.items() for part in parts}
        return flat | {"driver": self.driver}

    def layout(self) -> HeapLayout:
        """Return the heaps of each nonempty pool, by queue and name."""
        return {key: [heap.layout() for heap in pool.heaps] for key, pool in self.pools.items() if pool.heaps}

    def pool(self, queue: int, name: str) -> HeapPool:
        return self.pools.setdefault((queue, name), HeapPool(queue, name))

    def same_usage(self, pool: HeapPool) -> list[HeapPool]:
        """Return the pools of the same usage of all queues, by queue."""
        found = [each for each in self.pools.values() if each.name == pool.name]
        return sorted(found, key=lambda each: each.queue)

    # Buffers

    def mark_live(self, buffer: Buffer) -> None:
        """Mark a buffer as live. Its users are the queues that a free waits for."""
        pool = buffer.heap.pool
        buffer.state, buffer.age = "live", 0
        buffer.users = {pool.queue} if pool.name == "scalar" else set()
        self._count(buffer.size, "allocation", "allocated_bytes", "active_bytes")

    def use(self, buffer: Buffer, queue: int) -> None:
        """Record that another queue uses the buffer."""
        if queue != buffer.heap.pool.queue:
            buffer.users.add(queue)

    def free(self, buffer: Buffer) -> None:
        """Return a buffer to its pool, or leave it waiting until its users have finished their current work."""
        if buffer.state != "live":
            raise ValueError(f"already freed: {buffer.state}")
        self._count(-buffer.size, "allocation", "allocated_bytes")
        if buffer.users:
            buffer.state = "waiting"
            buffer.users &= self.busy
        else:
            self._cache(buffer)

    def work(self, queue: int) -> None:
        """Give a queue work until `finish`."""
        self.busy.add(queue)

    def finish(self, *queues: int) -> None:
        """Complete all work of the queues."""
        self.busy.difference_update(queues)
        for buffer in self._waiting():
            buffer.users.difference_update(queues)

    def process_pending_frees(self) -> None:
        """Return waiting buffers without users to their pools."""
        for buffer in self._waiting():
            if not buffer.users:
                self._cache(buffer)

    def _cache(self, buffer: Buffer) -> None:
        buffer.state = "cached"
        self._count(-buffer.size, "active_bytes")

    def release(self, buffer: Buffer) -> Heap:
        """Turn a buffer into a gap. Return its heap."""
        buffer.heap.buffers.remove(buffer)
        return buffer.heap

    def _waiting(self) -> list[Buffer]:
        heaps = (heap for pool in self.pools.values() for heap in pool.heaps)
        return [buffer for heap in heaps for buffer in heap.buffers if buffer.state == "waiting"]

    # Heaps

    def new_heap(self, pool: HeapPool, size: int, own: bool) -> Heap | None:
        """Allocate a heap; None if the device refuses."""
        if self.refusals:
            self.refusals -= 1
            return None
        if self.capacity is not None and self.driver + size > self.capacity:
            return None
        heap = Heap(next(self._numbers), size, pool, own)
        pool.heaps.append(heap)
        self._count(size, "segment", "reserved_bytes")
        return heap

    def return_if_empty(self, heap: Heap) -> None:
        """Release an empty heap to the device, unless its queue is busy."""
        if not heap.buffers and heap.pool.queue not in self.busy:
            heap.pool.heaps.remove(heap)
            self._count(-heap.size, "segment", "reserved_bytes")

    def _count(self, nbytes: int, *keys: str) -> None:
        """Add to statistics; allocations and segments count one each."""
        for key in keys:
            step = nbytes if key.endswith("bytes") else (1 if nbytes > 0 else -1)
            self.counters[key].add(step)
