"""The tables of a device of heaps, what is counted of them, and the device under it."""

from __future__ import annotations

from itertools import count

from support.model.heap_pieces import Buffer, Heap, HeapPool, Row
from support.model.pool import Counter

__all__ = ["HeapTables", "Picture"]

Picture = dict[tuple[int, str], list[tuple[int, int, list[Row]]]]  # of each queue's pools: the heaps
_COUNTED = ("allocation", "allocated_bytes", "active_bytes", "segment", "reserved_bytes")


class HeapTables:
    """What is where, and every step that changes it; it decides nothing.

    `busy` are the queues with work to do; `others`, bytes of the device that are not in heaps. The device hands out at
    most `capacity` bytes, None: any amount. The next `refusals` heaps it refuses whatever is free.
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
        """All that the device has handed out, to whomever."""
        return self.reserved + self.others

    @property
    def current_allocated(self) -> int:
        return self.counters["allocated_bytes"].current

    def numbers(self) -> dict[str, int]:
        """All that is counted, and the driver's total."""
        parts = ("current", "peak", "allocated", "freed")
        flat = {f"{key}.{part}": getattr(each, part) for key, each in self.counters.items() for part in parts}
        return flat | {"driver": self.driver}

    def picture(self) -> Picture:
        """Each pool that has heaps, by queue and name."""
        return {key: [heap.picture() for heap in pool.heaps] for key, pool in self.pools.items() if pool.heaps}

    def pool(self, queue: int, name: str) -> HeapPool:
        return self.pools.setdefault((queue, name), HeapPool(queue, name))

    def alike(self, pool: HeapPool) -> list[HeapPool]:
        """It and those of the same use that other queues have, by queue."""
        found = [each for each in self.pools.values() if each.name == pool.name]
        return sorted(found, key=lambda each: each.queue)

    # Buffers

    def hand_out(self, buffer: Buffer) -> None:
        """Its users are those whom it will have to wait for when it is freed."""
        pool = buffer.heap.pool
        buffer.state, buffer.age = "live", 0
        buffer.users = {pool.queue} if pool.name == "scalar" else set()
        self._count(buffer.size, "allocation", "allocated_bytes", "active_bytes")

    def use(self, buffer: Buffer, queue: int) -> None:
        """Another queue works on it, too."""
        if queue != buffer.heap.pool.queue:
            buffer.users.add(queue)

    def free(self, buffer: Buffer) -> None:
        """Into its pool; but what others use waits until it is settled, after they have done what they have now."""
        if buffer.state != "live":
            raise ValueError(f"freed already: {buffer.state}")
        self._count(-buffer.size, "allocation", "allocated_bytes")
        if buffer.users:
            buffer.state = "waiting"
            buffer.users &= self.busy
        else:
            self._cache(buffer)

    def work(self, queue: int) -> None:
        """It has something to do until it is finished."""
        self.busy.add(queue)

    def finish(self, *queues: int) -> None:
        """They have done all that they had."""
        self.busy.difference_update(queues)
        for buffer in self._waiting():
            buffer.users.difference_update(queues)

    def settle(self) -> None:
        """What nobody uses any more goes into its pool."""
        for buffer in self._waiting():
            if not buffer.users:
                self._cache(buffer)

    def _cache(self, buffer: Buffer) -> None:
        buffer.state = "cached"
        self._count(-buffer.size, "active_bytes")

    def release(self, buffer: Buffer) -> Heap:
        """It is room, and its heap is told."""
        buffer.heap.buffers.remove(buffer)
        return buffer.heap

    def _waiting(self) -> list[Buffer]:
        heaps = (heap for pool in self.pools.values() for heap in pool.heaps)
        return [buffer for heap in heaps for buffer in heap.buffers if buffer.state == "waiting"]

    # Heaps

    def new_heap(self, pool: HeapPool, size: int, own: bool) -> Heap | None:
        """None where the device refuses."""
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
        """It stays while its queue has work: a device does not watch for that."""
        if not heap.buffers and heap.pool.queue not in self.busy:
            heap.pool.heaps.remove(heap)
            self._count(-heap.size, "segment", "reserved_bytes")

    def _count(self, nbytes: int, *keys: str) -> None:
        """Allocations and segments count one each."""
        for key in keys:
            step = nbytes if key.endswith("bytes") else (1 if nbytes > 0 else -1)
            self.counters[key].move(step)
