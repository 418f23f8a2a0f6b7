"""Addresses with no memory behind them, handed out lowest first."""

from __future__ import annotations

from bisect import bisect_right, insort

__all__ = ["ALIGNMENT", "Addresses"]

ALIGNMENT = 2 << 20


class Addresses:
    """The addresses from `base` on, `room` bytes of them."""

    def __init__(self, base: int, room: int) -> None:
        self._base = base
        self._end = base + room
        self._taken: list[tuple[int, int]] = []  # address and size, in order

    def take(self, nbytes: int) -> int:
        """The lowest hole that is large enough; MemoryError when there is none."""
        at = self._base
        for address, size in self._taken:
            if address - at >= nbytes:
                break
            at = -(-(address + size) // ALIGNMENT) * ALIGNMENT
        if nbytes > self._end - at:
            raise MemoryError(f"no hole of {nbytes} bytes among the addresses")
        insort(self._taken, (at, nbytes))
        return at

    def give(self, address: int) -> int | None:
        """How many bytes were taken there, and now are not; None if nothing was."""
        i = bisect_right(self._taken, (address, 0))
        if i == len(self._taken) or self._taken[i][0] != address:
            return None
        return self._taken.pop(i)[1]

    def lost(self, address: int, nbytes: int) -> bool:
        """Whether these bytes are of ours, and not all of them are taken."""
        if not self._base <= address < self._end:
            return False
        i = bisect_right(self._taken, (address, self._end)) - 1
        return i < 0 or address + nbytes > sum(self._taken[i])

    def clear(self) -> None:
        self._taken.clear()
