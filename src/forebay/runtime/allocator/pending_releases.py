"""Segments evicted from the pool but not yet released to the device.

Tracking them here ensures that no other thread finds them missing from both.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from itertools import count

from forebay.errors import DeviceError

__all__ = ["PendingReleases"]


class PendingReleases:
    """Evicted segments of one allocator.

    `evict(address, stack)` removes a segment from the pool if it is wholly free, and records the stack in the history;
    `release(address)` returns it to its source.
    """

    def __init__(self, evict: Callable[[int, int], bool], release: Callable[[int], object]) -> None:
        self.num_released = 0
        self._evict = evict
        self._release = release
        self._serial = count()
        self._entries: deque[tuple[int, int]] = deque()  # address and serial, as an address may occur twice
        self.lock = threading.RLock()  # held during `release` only, never while waiting for a queue

    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._entries)

    def add(self, addresses: list[int], stack: int = 0) -> None:
        """Evict those of the segments that are wholly free."""
        self._entries.extend(zip((each for each in addresses if self._evict(each, stack)), self._serial, strict=False))

    def after_fork_in_child(self) -> None:
        """Replace the lock in a forked child, as a thread of the parent may have held it."""
        self.lock = threading.RLock()

    def release(self, entries: tuple[tuple[int, int], ...]) -> None:
        """Release the entries, except those that another thread has released."""
        with self.lock:  # a second thread returns only after the memory is back at the port
            for entry in entries:
                try:
                    self._entries.remove(entry)
                except ValueError:  # released by another thread
                    continue
                try:
                    self._release(entry[0])
                except DeviceError:
                    self._entries.append(entry)
                    raise
                self.num_released += 1
