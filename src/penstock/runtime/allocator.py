"""The allocator: what to do when the pool has nothing. PyTorch's order of remedies, one rung a line."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from penstock._core import Block, Pool
from penstock.errors import OutOfMemory
from penstock.runtime import out_of_memory
from penstock.spi import Port, Queue

__all__ = ["Allocator"]


class Allocator(Pool):
    """A pool over one port. `allocate(nbytes, queue)` gives a Block, whose end gives the memory back.

    A block that other queues use (`Block.used_on`) comes back when they have passed the point they had reached when it
    was given back. Raises OutOfMemory when every remedy failed.
    """

    def __init__(self, name: str, port: Port, queues: Mapping[int, Queue]) -> None:
        self.name = name
        self.port = port
        self._queues = queues
        self._pending: deque[tuple[int, list[tuple[Queue, int]]]] = deque()
        self.reset_accumulated()

    def reset_accumulated(self) -> None:
        super().reset_accumulated()
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.num_sync_all_streams = 0
        self.num_device_alloc = 0
        self.num_device_free = 0

    # The pool calls these two.

    def _refill(self, nbytes: int, queue: int) -> Block:
        """Cheapest remedy first; each rung may make the next take succeed."""
        for remedy in (self._grow, self._empty_and_grow):
            while remedy(nbytes, queue):
                if (block := self.take(nbytes, queue)) is not None:
                    return block  # else another thread was quicker: grow again
        raise self._out_of_memory(nbytes, queue)

    def _defer(self) -> None:
        """Blocks were given back while other queues use them: remember how far those queues must come."""
        for token, handles in self.deferred():
            queues = [self._queues[handle] for handle in handles]
            self._pending.append((token, [(queue, queue.signal()) for queue in queues]))
        self.waiting = True

    def _settle(self) -> None:
        """Free what its queues are done with. The pool calls it before each allocation while anything waits."""
        for _ in range(len(self._pending)):
            token, marks = self._pending.popleft()
            if all(queue.reached() >= tick for queue, tick in marks):
                self.settle(token)
            else:
                self._pending.append((token, marks))
        self.waiting = bool(self._pending)

    # The rungs.

    def _grow(self, nbytes: int, queue: int) -> bool:
        size, small = self.segment_size(nbytes)
        try:
            address = self.port.reserve(size)
        except OutOfMemory:
            return False
        self.num_device_alloc += 1
        self.adopt(address, size, queue, small)
        return True

    def _empty_and_grow(self, nbytes: int, queue: int) -> bool:
        self.empty()
        self.num_alloc_retries += 1
        return self._grow(nbytes, queue)

    def _out_of_memory(self, nbytes: int, queue: int) -> OutOfMemory:
        self.num_ooms += 1
        free, total = self.port.memory_info()
        self.note_oom(self.rounded(nbytes), queue, free)
        return out_of_memory.explain(self, self.name, nbytes, free, total)

    def empty(self) -> None:
        """Give every wholly free segment back to the port; waits for queues that still use blocks given back."""
        self.num_sync_all_streams += 1
        while self._pending:
            token, marks = self._pending.popleft()
            for queue, tick in marks:
                queue.wait(tick)
            self.settle(token)
        for address, _ in self.evictable():
            if self.evict(address):
                self.num_device_free += 1
                self.port.release(address)
