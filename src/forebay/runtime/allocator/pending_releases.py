"""Segments that were the pool's and still are the port's, so that nobody looks while they are in neither."""

from __future__ import annotations

import threading
from collections import deque
from itertools import count
from typing import TYPE_CHECKING

from forebay.errors import DeviceError

if TYPE_CHECKING:
    from forebay.runtime.allocator.caching_allocator import Allocator

__all__ = ["Leaving"]


class Leaving:
    """What `release` still has to give back; it counts `num_device_free`.

    `inherited` are those that a forked child has of its parent's port. They stay: the child's port has never seen them.
    """

    def __init__(self, allocator: Allocator, inherited: frozenset[int] = frozenset()) -> None:
        self._allocator = allocator
        self._inherited = inherited
        self._serial = count()
        self._entries: deque[tuple[int, int]] = deque()  # numbered, as an address may come twice
        self.releasing = threading.RLock()  # held for calls of `release` alone, and never while waiting for a queue

    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._entries)

    def add(self, addresses: list[int]) -> None:
        """Those that are wholly free leave the pool."""
        ours = (address for address in addresses if address not in self._inherited)
        self._entries.extend(zip(filter(self._allocator.evict, ours), self._serial, strict=False))

    def release(self, entries: tuple[tuple[int, int], ...]) -> None:
        """Give these back, as far as nobody else did."""
        with self.releasing:  # so that whoever comes second finds the memory with the port
            for entry in entries:
                try:
                    self._entries.remove(entry)
                except ValueError:  # another thread was quicker
                    continue
                try:
                    self._allocator.sources.release(entry[0])
                except DeviceError:
                    self._entries.append(entry)
                    raise
                self._allocator.num_device_free += 1
