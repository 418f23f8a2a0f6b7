"""Segments that were the pool's and still are the port's, so that nobody looks while they are in neither."""

from __future__ import annotations

import threading
from collections import deque
from itertools import count
from typing import TYPE_CHECKING

from penstock.errors import DeviceError

if TYPE_CHECKING:
    from penstock.runtime.allocator import Allocator

__all__ = ["Leaving"]


class Leaving:
    """What `release` still has to give back; it counts `num_device_free`."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._serial = count()
        self._entries: deque[tuple[int, int]] = deque()  # numbered, as an address may come twice
        self.releasing = threading.RLock()  # held for calls of `release` alone, and never while waiting for a queue

    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._entries)

    def add(self, addresses: list[int]) -> None:
        """Those that are wholly free leave the pool."""
        self._entries.extend(zip(filter(self._allocator.evict, addresses), self._serial, strict=False))

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
