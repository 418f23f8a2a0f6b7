"""First-fit allocator of addresses that have no memory behind them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from forebay.spi import SEGMENT_ALIGNMENT

__all__ = ["AddressAllocator"]

_Holes = tuple[tuple[int, int], ...]  # start and end of each free range, in order; there are usually few


class AddressAllocator:
    """First-fit allocator of an address range, in multiples of `forebay.spi.SEGMENT_ALIGNMENT` (2 MiB).

    Signal handlers and destructors may use the object at any point. It is not thread-safe.

    Parameters
    ----------
    base : int
        The first address.
    room : int
        Size of the range in bytes.

    Examples
    --------
    >>> addresses = AddressAllocator(0x200000, 4 * SEGMENT_ALIGNMENT)
    >>> hex(addresses.allocate(100)), hex(addresses.allocate(100))
    ('0x200000', '0x400000')
    >>> addresses.free(0x200000)
    100
    """

    def __init__(self, base: int, room: int) -> None:
        self._base, self._end = base, base + room
        self._taken: dict[int, int] = {}  # sizes by address
        self._holes: _Holes = ((self._base, self._end),)

    def allocate(self, nbytes: int) -> int:
        """Allocate from the lowest free range that is large enough.

        Parameters
        ----------
        nbytes : int
            Bytes to allocate.

        Returns
        -------
        int
            The address, a multiple of `SEGMENT_ALIGNMENT` above `base`.

        Raises
        ------
        MemoryError
            If no free range is large enough.
        """
        size = _aligned(nbytes)
        while True:
            holes = self._holes
            at = next((at for at, (start, end) in enumerate(holes) if end - start >= size), None)
            if at is None:
                raise MemoryError(f"no free address range of {nbytes} bytes")
            start, end = holes[at]
            changed = (*holes[:at], *([(start + size, end)] if end - start > size else []), *holes[at + 1 :])
            if self._holes is holes:  # otherwise a signal handler changed the ranges: retry
                self._holes = changed
                self._taken[start] = nbytes
                return start

    def free(self, address: int) -> int | None:
        """Free the range at an address.

        Parameters
        ----------
        address : int
            As returned by `allocate`.

        Returns
        -------
        int or None
            The bytes that were allocated there; None if nothing was.
        """
        nbytes = self._taken.pop(address, None)
        while nbytes is not None:
            holes = self._holes
            low = high = bisect_left(holes, (address,))
            start, end = address, address + _aligned(nbytes)
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

    def outside_allocation(self, address: int, nbytes: int) -> bool:
        """Return True if the bytes are inside this range but not inside a single allocation.

        Parameters
        ----------
        address : int
            Address of the first byte.
        nbytes : int
            Number of bytes.

        Returns
        -------
        bool
            False also for addresses outside the range.
        """
        if not self._base <= address < self._end:
            return False
        starts = sorted(self._taken)
        at = bisect_right(starts, address) - 1
        return at < 0 or address + nbytes > starts[at] + self._taken[starts[at]]

    def clear(self) -> None:
        """Free all ranges."""
        self._taken.clear()
        self._holes = ((self._base, self._end),)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // SEGMENT_ALIGNMENT) * SEGMENT_ALIGNMENT
