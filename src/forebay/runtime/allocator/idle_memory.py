"""Return of idle memory to ports that reserve memory cheaply (`DeviceProps.fine_segments`).

A CPU device shares its memory with the rest of the machine. A cache without a limit would keep one segment for each
size of an array that grows, and never reuse it: 3,475 MiB for an array of 24 MB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from forebay.runtime.allocator.statistics import RESERVED_BYTES

if TYPE_CHECKING:
    from forebay._core import Pool

__all__ = ["KEPT", "IdleMemory"]

KEPT = 32 << 20  # bytes of wholly free segments; about what glibc's malloc keeps


class IdleMemory:
    """The wholly free segments of a pool's default partition.

    `release(addresses, stack)` releases segments; `has_work()` returns True while queued work may use free memory.
    """

    def __init__(self, pool: Pool, release: Callable[[list[int], int], object], has_work: Callable[[], bool]) -> None:
        self._pool = pool
        self._release = release
        self._has_work = has_work
        self._seen: set[tuple[int, int]] = set()  # address and request clock of what was free at the last call
        self.watch: Callable[[], object] | None = None  # called when memory was reserved and more than KEPT is

    def trim(self, stack: int) -> None:
        """Release the segments that have been free for longest, until KEPT bytes of them remain.

        Call before reserving memory: no free segment fits then. `stack` is the request's, for the history.
        """
        if not self.exceeds_kept():
            return
        free = self._free()
        surplus = sum(nbytes for _, nbytes, _ in free) - KEPT
        released = []
        for address, nbytes, _ in free:
            if surplus <= 0:
                break
            released.append(address)
            surplus -= nbytes
        if released and not self._has_work():
            self._release(released, stack)

    def release_unused(self) -> None:
        """Release the segments that have been free since the previous call."""
        free = self._free()
        unused = [address for address, _, freed_at in free if (address, freed_at) in self._seen]
        self._seen = {(address, freed_at) for address, _, freed_at in free}
        if unused and not self._has_work():
            self._release(unused, 0)

    def on_reserved(self) -> None:
        """Call `watch` if there may be memory to return later."""
        if self.watch is not None and self.exceeds_kept():
            self.watch()

    def exceeds_kept(self) -> bool:
        return self._pool.current(RESERVED_BYTES) > KEPT

    def _free(self) -> list[tuple[int, int, int]]:
        """Return address, size and request clock of each segment, the one that was freed first first."""
        rows = [row for small in (False, True) for row in self._pool.evictable(small)]
        return sorted(((row[0], row[1], row[5]) for row in rows), key=lambda row: row[2])
