"""Segments evicted from the pool but not yet released to the device.

# Note [Memory is in a table at every moment]
The release of a segment may take milliseconds, wait for work of the device, or run a destructor. Another thread that
needs memory by then must not find the segment missing from both pool and device, or it would raise OutOfMemory
although memory is on its way back. An evicted segment is therefore in this table until the port has it. Any thread may
release the entries, one at a time: it helps, or waits for the one that does. The lock is held around that call of the
port only, never while waiting for a queue, and allocations from the cache do not need it. Rejected: one lock around all
recovery steps. Destructors run inside them in the same thread, so that it would have to be recursive, and a recursive
lock does not protect a thread from itself.
Test: tests/runtime/allocator/test_segment_allocator.py::test_allocation_waits_for_memory_being_released
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

from forebay.runtime.allocator._reservations import evict_into, release_entry

__all__ = ["PendingReleases"]


class PendingReleases:
    """Evicted segments of one allocator.

    `evict(address, stack)` removes a segment from the pool if it is wholly free, and records the stack in the history;
    `release_of(address)` returns the function that returns it to its source.
    """

    def __init__(self, evict: Callable[[int, int], bool], release_of: Callable[[int], Callable[[int], object]]) -> None:
        self.num_released: int = 0
        self._evict = evict
        self._release_of = release_of
        self._serial = count()
        self._entries: list[tuple[int, int]] = []  # address and serial, as an address may occur twice
        # Held during `release` only. A port waits in it for work that was queued since the allocator waited for all
        # queues; a queue's own thread, which that would block, does not come here.
        self.lock: threading.RLock = threading.RLock()

    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._entries)

    def add(self, addresses: list[int], stack: int = 0) -> None:
        """Evict those of the segments that are wholly free."""
        evict_into(self._entries, addresses, self._evict, stack, self._serial)

    def after_fork_in_child(self) -> None:
        """Replace the lock in a forked child, as a thread of the parent may have held it."""
        self.lock = threading.RLock()

    def release(self, entries: tuple[tuple[int, int], ...]) -> None:
        """Release the entries, except those that another thread has released."""
        with self.lock:  # a second thread returns only after the memory is back at the port
            for entry in entries:
                release_entry(self, self._entries, entry, self._release_of(entry[0]))
