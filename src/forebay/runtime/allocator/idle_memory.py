"""Return of idle memory to ports that reserve memory cheaply (`DeviceProps.fine_segments`).

# Note [Idle memory]
A CPU device shares its memory with the rest of the machine, and an array that grows has a new size at each step: a
cache without a limit would keep a segment for each of them and never reuse it (`np.append` of 10,000 elements, 300
times: 3,489 MiB for an array of 23 MiB). So a request that must reserve first releases, of each size class, what has
been free for longest, until 32 MiB remain, but at most 32 MiB more than was reserved since then: small arrays that are
kept must not cost a large segment that is in use again in each round. A loop that has found its working set reserves
nothing. A thread releases each second what was free in its previous pass, too. Nothing is released while work is
queued, or from private pools. Rejected: a limit alone, which a loop over large arrays would hit in each round.
Test: tests/runtime/allocator/test_idle_memory.py::test_small_reservations_do_not_release_a_large_working_set
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from forebay.errors import DeviceError
from forebay.runtime.allocator.metrics import METRIC, RESERVED_BYTES

if TYPE_CHECKING:
    from forebay._core import Pool

__all__ = ["KEPT", "IdleMemory"]

KEPT = 32 << 20  # bytes of wholly free segments; about what glibc's malloc keeps

_ACTIVE, _SPLIT = METRIC["active_bytes"], METRIC["inactive_split_bytes"]


class IdleMemory:
    """The wholly free segments of the default pool.

    `release(addresses, stack)` releases segments; `has_work()` returns True while queued work may use free memory.
    """

    def __init__(self, pool: Pool, release: Callable[[list[int], int], object], has_work: Callable[[], bool]) -> None:
        self._pool = pool
        self._release = release
        self._has_work = has_work
        self._credit = KEPT  # bytes that `trim` may release: those that were reserved, and KEPT
        self._seen: set[tuple[int, int]] = set()  # address and request clock of what was free at the last call
        self.watch: Callable[[], object] | None = None  # called when memory was reserved and more than KEPT is

    def trim(self, nbytes: int, stack: int) -> None:
        """Release segments, so that the reservation of `nbytes` that follows adds nothing to more than KEPT free bytes.

        Of each size class, those that have been free for longest go first; altogether hardly more bytes than were
        reserved, so that a few small reservations do not cost a large segment that is in use again and again. `stack`
        is the request's, for the history.
        """
        surplus = self._most_free_bytes() - KEPT
        if surplus <= 0:
            self._credit = KEPT
            return
        self._credit += nbytes
        if self._has_work():
            return
        free = self._free()
        surplus = sum(size for _, size, _ in free) - KEPT
        released = []
        for address, size, _ in free:
            if surplus <= 0:
                break
            if size <= self._credit:
                released.append(address)
                self._credit -= size
                surplus -= size
        if released:
            with suppress(DeviceError):  # the segments remain pending, and the request may succeed nevertheless
                self._release(released, stack)

    def release_unused(self) -> None:
        """Release the segments that have been free since the previous call."""
        free = self._free() if self._most_free_bytes() > 0 else []
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

    def _most_free_bytes(self) -> int:
        """Return an upper bound of the bytes in wholly free segments, without a walk over all free blocks."""
        current = self._pool.current
        return current(RESERVED_BYTES) - current(_ACTIVE) - current(_SPLIT)

    def _free(self) -> list[tuple[int, int, int]]:
        """Return address, size and request clock of the large and then of the small segments, oldest first.

        Each class has its own clock.
        """
        found = []
        for small in (False, True):
            rows = ((row[0], row[1], row[5]) for row in self._pool.evictable(small))
            found += sorted(rows, key=lambda row: row[2])
        return found
