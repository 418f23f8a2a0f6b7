"""State of the pinned allocator (free blocks by bucket, statistics) and lock-free, atomic updates of it.

Another thread, a signal handler or a destructor may run between any two steps, so there is no lock: `Tables` are
immutable, an update derives new tables from the newest version, and an update that loses a race is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = [
    "Bucket",
    "HostBlock",
    "PinnedLease",
    "SideEffect",
    "Stat",
    "Tables",
    "Times",
    "Transition",
    "VersionedState",
]

Stat = tuple[int, int, int, int]  # current, peak, allocated, freed
_ZERO: Stat = (0, 0, 0, 0)


class HostBlock:
    """A piece of pinned memory, from `pin` to `unpin`. Never split or merged."""

    __slots__ = ("address", "frames", "reserved", "size")

    def __init__(self, address: int, size: int, *, reserved: bool = False) -> None:
        self.address = address
        self.size = size
        self.reserved = reserved  # part of the reserved segment
        self.frames: Any = None  # the allocating stack, while a history is recorded


class PinnedLease:
    """One use of a block, from `allocate` until the free completes. Each field has only one possible new value."""

    __slots__ = ("__weakref__", "block", "freed", "returned", "uses")

    def __init__(self) -> None:
        self.block: HostBlock | None = None
        self.freed = False  # freed by its owner; queues may still use the block
        self.returned = False  # the free is complete
        self.uses: dict[int, Any] = {}  # queues that copy from or to the block, by identity


class Bucket(NamedTuple):
    """Blocks of more than 2^(n-1) and at most 2^n bytes."""

    free: tuple[HostBlock, ...] = ()  # the most recently freed block last
    requests: Stat = _ZERO
    nbytes: Stat = _ZERO


class Times(NamedTuple):
    """Durations of driver calls in µs. As in PyTorch, resetting peaks clears `longest` and `shortest` only."""

    total: int = 0
    longest: int = 0
    shortest: int = 0
    calls: int = 0

    def add(self, duration: int) -> Times:
        shortest = min(duration, self.shortest) if self.shortest else duration
        return Times(self.total + duration, max(duration, self.longest), shortest, self.calls + 1)

    def without_peaks(self) -> Times:
        return Times(self.total, 0, 0, self.calls)

    def without_totals(self) -> Times:
        return Times(0, self.longest, self.shortest, 0)


class Tables(NamedTuple):
    """Immutable state of the allocator at one moment."""

    buckets: Mapping[int, Bucket]
    allocations: Stat = _ZERO
    nbytes: Stat = _ZERO
    pin_times: Times = Times()
    unpin_times: Times = Times()
    evicted: tuple[HostBlock, ...] = ()  # removed from the cache, not yet claimed for unpinning
    unpinning: tuple[tuple[HostBlock, object], ...] = ()  # blocks being unpinned, each with the claim of its caller
    segment: tuple[int, int] | None = None  # address and size of the reserved segment; (0, 0): disabled for good
    segment_used: int = 0  # bytes of the segment handed out, from its start
    segment_blocks: int = 0


SideEffect = tuple[PinnedLease, str, object]  # a lease's field and the value that an update gives it
Transition = Callable[[Tables], "tuple[Tables, SideEffect | None] | None"]  # returns None to change nothing


class VersionedState:
    """The newest `Tables`, at the end of a chain of versions."""

    def __init__(self, tables: Tables) -> None:
        self._newest = _Version(tables, None)

    def now(self) -> Tables:
        """Return the newest tables; every side effect up to them has been applied."""
        return self._advance().tables

    def change(self, transition: Transition) -> bool:
        """Apply the transition atomically. Return False if it changes nothing."""
        while True:
            version = self._advance()
            made = transition(version.tables)
            if made is None:
                return False
            following = _Version(*made)
            if version.following.setdefault("one", following) is following:  # atomic: the first of two updates wins
                self._advance()
                return True

    def _advance(self) -> _Version:
        """Walk to the newest version, applying each side effect: the thread that made it may have been interrupted."""
        version = self._newest
        version.apply_effect()
        while (following := version.following.get("one")) is not None:
            version = following
            version.apply_effect()
        self._newest = version  # may go backwards if another thread was faster: the next walk is longer then
        return version


class _Version:
    __slots__ = ("effect", "following", "tables")

    def __init__(self, tables: Tables, effect: SideEffect | None) -> None:
        self.tables = tables
        self.effect = effect
        self.following: dict[str, _Version] = {}

    def apply_effect(self) -> None:
        if self.effect is not None:
            lease, field, value = self.effect
            setattr(lease, field, value)
