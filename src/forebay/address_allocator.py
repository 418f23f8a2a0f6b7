"""Addresses with no memory behind them, handed out lowest first."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

__all__ = ["ALIGNMENT", "Addresses"]

ALIGNMENT = 2 << 20

_Holes = tuple[tuple[int, int], ...]  # where each begins and ends, in order; as a rule there are few


class Addresses:
    """The addresses from `base` on, `room` bytes of them, in steps of ALIGNMENT.

    A signal's handler or a destructor may come in between anywhere, but no other thread.
    """

    def __init__(self, base: int, room: int) -> None:
        self._base, self._end = base, base + room
        self._taken: dict[int, int] = {}  # sizes by address
        self._holes: _Holes = ((self._base, self._end),)

    def take(self, nbytes: int) -> int:
        """The lowest hole that is large enough; MemoryError when there is none."""
        size = _steps(nbytes)
        while True:
            holes = self._holes
            at = next((at for at, (start, end) in enumerate(holes) if end - start >= size), None)
            if at is None:
                raise MemoryError(f"no hole of {nbytes} bytes among the addresses")
            start, end = holes[at]
            changed = (*holes[:at], *([(start + size, end)] if end - start > size else []), *holes[at + 1 :])
            if self._holes is holes:  # else somebody came in between
                self._holes = changed
                self._taken[start] = nbytes
                return start

    def give(self, address: int) -> int | None:
        """How many bytes were taken there, and now are not; None if nothing was."""
        nbytes = self._taken.pop(address, None)
        while nbytes is not None:
            holes = self._holes
            low = high = bisect_left(holes, (address,))
            start, end = address, address + _steps(nbytes)
            if low and holes[low - 1][1] == start:
                low -= 1
                start = holes[low][0]
            if high < len(holes) and holes[high][0] == end:
                end = holes[high][1]
                high += 1
            changed = (*holes[:low], (start, end), *holes[high:])
            if self._holes is holes:
                self._holes = changed
                return nbytes
        return None

    def lost(self, address: int, nbytes: int) -> bool:
        """Whether these bytes are of ours, and not all of them are taken, in one piece."""
        if not self._base <= address < self._end:
            return False
        starts = sorted(self._taken)
        at = bisect_right(starts, address) - 1
        return at < 0 or address + nbytes > starts[at] + self._taken[starts[at]]

    def clear(self) -> None:
        self._taken.clear()
        self._holes = ((self._base, self._end),)


def _steps(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
