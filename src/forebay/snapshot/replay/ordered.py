"""Ordered searches over a history at a small cost for any file: sorted addresses, flagged ranges, newest entries."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np
from numpy.typing import NDArray

__all__ = ["FlaggedRanges", "NewestInRange", "SortedAddresses"]

_CHUNK = 1 << 10


class SortedAddresses:
    """Distinct numbers in order, in chunks, as inserting into one list would take quadratic time.

    Examples
    --------
    >>> addresses = SortedAddresses()
    >>> for address in (30, 10, 20):
    ...     addresses.add(address)
    >>> addresses.at_or_before(29), addresses.after(30)
    (20, None)
    """

    def __init__(self) -> None:
        self._chunks: list[list[int]] = [[]]
        self._firsts: list[int] = [-1]  # the smallest number that each chunk may contain

    def add(self, address: int) -> None:
        """Add a number that is not contained."""
        at = bisect_right(self._firsts, address) - 1
        chunk = self._chunks[at]
        insort(chunk, address)
        if len(chunk) > 2 * _CHUNK:
            self._chunks[at : at + 1] = [chunk[:_CHUNK], chunk[_CHUNK:]]
            self._firsts.insert(at + 1, chunk[_CHUNK])

    def remove(self, address: int) -> None:
        """Remove a number that is contained."""
        at = bisect_right(self._firsts, address) - 1
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, address)]
        if not chunk and at:
            del self._chunks[at], self._firsts[at]

    def at_or_before(self, address: int) -> int | None:
        """Return the largest number that is not larger than `address`."""
        at = bisect_right(self._firsts, address) - 1
        place = bisect_right(self._chunks[at], address)
        if place:
            return self._chunks[at][place - 1]
        return next((chunk[-1] for chunk in reversed(self._chunks[max(0, at - 2) : at]) if chunk), None)

    def after(self, address: int) -> int | None:
        """Return the smallest number that is larger than `address`."""
        at = bisect_right(self._firsts, address) - 1
        place = bisect_right(self._chunks[at], address)
        if place < len(self._chunks[at]):
            return self._chunks[at][place]
        return next((chunk[0] for chunk in self._chunks[at + 1 : at + 3] if chunk), None)


class FlaggedRanges:
    """Address ranges with a flag; a later range replaces what it overlaps."""

    def __init__(self) -> None:
        self._starts = SortedAddresses()
        self._ranges: dict[int, tuple[int, bool]] = {}  # end and flag, by start

    def set(self, start: int, end: int, flag: bool) -> None:
        """Set the flag of a range."""
        before = self._starts.at_or_before(start)
        covered = self._starts.after(start) if before is None or self._ranges[before][0] <= start else before
        while covered is not None and covered < end:
            following = self._starts.after(covered)
            old_end, old_flag = self._ranges.pop(covered)
            self._starts.remove(covered)
            if covered < start:
                self._insert(covered, start, old_flag)
            if old_end > end:
                self._insert(end, old_end, old_flag)
            covered = following
        self._insert(start, end, flag)

    def _insert(self, start: int, end: int, flag: bool) -> None:
        if start not in self._ranges:
            self._starts.add(start)
        self._ranges[start] = end, flag

    def get(self, address: int) -> bool | None:
        """Return the flag at an address; None if none was set."""
        if (start := self._starts.at_or_before(address)) is None:
            return None
        end, flag = self._ranges[start]
        return flag if address < end else None


class NewestInRange:
    """The newest of the entries at a range of positions, before an entry that moves forward only."""

    def __init__(self, entries: NDArray[np.intp]) -> None:
        self._entries = entries  # by position
        self._order = np.argsort(entries)
        self._known = 0  # entries that `_newest` includes, oldest first
        self._newest = np.full(len(entries) // _CHUNK + 1, -1)  # of each chunk of positions

    def before(self, entry: int, low: int, high: int) -> int | None:
        """Return the position of the newest entry older than `entry` from `low` to `high`; None if there is none."""
        if high - low <= 4 * _CHUNK:
            return self._scan(entry, low, high)
        end = int(np.searchsorted(self._entries, entry, sorter=self._order))
        added = self._order[self._known : end]
        self._newest[added // _CHUNK] = self._entries[added]  # of equal chunks the last assignment counts
        self._known = end
        first, last = -(-low // _CHUNK), high // _CHUNK
        chunk = first + int(np.argmax(self._newest[first:last]))
        ranges = ((low, first * _CHUNK), (chunk * _CHUNK, chunk * _CHUNK + _CHUNK), (last * _CHUNK, high))
        found = [at for part in ranges if (at := self._scan(entry, *part)) is not None]
        return max(found, key=lambda at: int(self._entries[at]), default=None)

    def _scan(self, entry: int, low: int, high: int) -> int | None:
        part = self._entries[low:high]
        older = np.flatnonzero(part < entry)
        return low + int(older[np.argmax(part[older])]) if len(older) else None
