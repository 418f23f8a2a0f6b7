"""Addresses with no memory behind them, handed out lowest first."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

__all__ = ["ALIGNMENT", "Addresses"]

ALIGNMENT = 2 << 20


class Addresses:
    """The addresses from `base` on, `room` bytes of them, in steps of ALIGNMENT."""

    def __init__(self, base: int, room: int) -> None:
        self._base, self._room = base, room
        self._taken: dict[int, int] = {}  # sizes by address
        # Those that are free: where each hole begins, in order, and how large it is. As a rule there are few.
        self._holes: list[int] = []
        self._sizes: dict[int, int] = {}
        self.clear()

    def take(self, nbytes: int) -> int:
        """The lowest hole that is large enough; MemoryError when there is none."""
        size = _steps(nbytes)
        at = next((at for at, hole in enumerate(self._holes) if self._sizes[hole] >= size), None)
        if at is None:
            raise MemoryError(f"no hole of {nbytes} bytes among the addresses")
        address = self._holes[at]
        rest = self._sizes.pop(address) - size
        if rest:
            self._holes[at] = address + size
            self._sizes[address + size] = rest
        else:
            del self._holes[at]
        self._taken[address] = nbytes
        return address

    def give(self, address: int) -> int | None:
        """How many bytes were taken there, and now are not; None if nothing was."""
        nbytes = self._taken.pop(address, None)
        if nbytes is None:
            return None
        size, at = _steps(nbytes), bisect_left(self._holes, address)
        if at < len(self._holes) and self._holes[at] == address + size:
            size += self._sizes.pop(self._holes.pop(at))
        if at and self._holes[at - 1] + self._sizes[self._holes[at - 1]] == address:
            self._sizes[self._holes[at - 1]] += size
        else:
            self._holes.insert(at, address)
            self._sizes[address] = size
        return nbytes

    def lost(self, address: int, nbytes: int) -> bool:
        """Whether these bytes are of ours, and not all of them are taken, in one piece."""
        if not self._base <= address < self._base + self._room:
            return False
        starts = sorted(self._taken)
        at = bisect_right(starts, address) - 1
        return at < 0 or address + nbytes > starts[at] + self._taken[starts[at]]

    def clear(self) -> None:
        self._taken.clear()
        self._holes, self._sizes = [self._base], {self._base: self._room}


def _steps(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
