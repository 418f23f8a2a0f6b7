"""What the pinned allocator knows: free blocks by bucket, and what is counted. Every change is one, or none at all.

A thread, a signal handler or a destructor may come in between anywhere. So nobody locks: the tables never change, each
change makes new ones from the newest, and whoever comes second does it over on what the first one left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["Bucket", "Count", "Effect", "HostBlock", "Loan", "Step", "Tables", "Times", "Versions"]

Count = tuple[int, int, int, int]  # current, peak, allocated, freed
_NONE: Count = (0, 0, 0, 0)


class HostBlock:
    """One piece of pinned memory, from `pin` to `unpin`. Never split, never merged."""

    __slots__ = ("address", "frames", "reserved", "size")

    def __init__(self, address: int, size: int, *, reserved: bool = False) -> None:
        self.address = address
        self.size = size
        self.reserved = reserved  # a part of the reserved segment
        self.frames: Any = None  # where it was allocated, while that is recorded


class Loan:
    """One use of a block, from `allocate` to its return. Fields are written once, whoever writes them."""

    __slots__ = ("__weakref__", "back", "block", "freed", "uses")

    def __init__(self) -> None:
        self.block: HostBlock | None = None
        self.freed = False  # by its owner; other queues may still use it
        self.back = False  # with the allocator again
        self.uses: dict[int, Any] = {}  # queues that copy from or to it, by identity


class Bucket(NamedTuple):
    """Blocks of more than half of 2^n bytes and up to 2^n."""

    free: tuple[HostBlock, ...] = ()  # the one that came last at the end
    requests: Count = _NONE
    nbytes: Count = _NONE


class Times(NamedTuple):
    """How long calls took, in µs. As in PyTorch a reset of peaks forgets `least` and `most`, the other one the rest."""

    total: int = 0
    most: int = 0
    least: int = 0
    calls: int = 0

    def and_one(self, took: int) -> Times:
        least = min(took, self.least) if self.least else took
        return Times(self.total + took, max(took, self.most), least, self.calls + 1)

    def without_peaks(self) -> Times:
        return Times(self.total, 0, 0, self.calls)

    def without_sums(self) -> Times:
        return Times(0, self.most, self.least, 0)


class Tables(NamedTuple):
    """All of it at one moment."""

    buckets: Mapping[int, Bucket]
    allocations: Count = _NONE
    nbytes: Count = _NONE
    pinning: Times = Times()
    unpinning: Times = Times()
    leaving: tuple[HostBlock, ...] = ()  # to be unpinned; nobody else's any more
    going: tuple[tuple[HostBlock, object], ...] = ()  # being unpinned, and whose work that is
    segment: tuple[int, int] | None = None  # the reserved one: address and size; (0, 0): none, and none will come
    used: int = 0  # bytes of it that were given out, from its beginning
    parts: int = 0  # blocks in it


Effect = tuple[Loan, str, object]  # what becomes true with a change: a field of a loan, and its value
Step = Callable[[Tables], "tuple[Tables, Effect | None] | None"]  # None: there is nothing to change


class Versions:
    """The tables, one version after the other."""

    def __init__(self, tables: Tables) -> None:
        self._newest = _Version(tables, None)

    def now(self) -> Tables:
        return self._walk().tables

    def change(self, step: Step) -> bool:
        """Whether there was something to change."""
        while True:
            version = self._walk()
            made = step(version.tables)
            if made is None:
                return False
            later = _Version(*made)
            if version.later.setdefault("one", later) is later:  # atomic: of two only the first one gets in
                self._walk()
                return True

    def _walk(self) -> _Version:
        """To the newest. Whoever passes a change lets it happen, as its maker may have been interrupted."""
        version = self._newest
        version.happen()
        while (later := version.later.get("one")) is not None:
            version = later
            version.happen()
        self._newest = version  # or an older one, if another thread was quicker: the walk is longer then
        return version


class _Version:
    __slots__ = ("effect", "later", "tables")

    def __init__(self, tables: Tables, effect: Effect | None) -> None:
        self.tables = tables
        self.effect = effect
        self.later: dict[str, _Version] = {}

    def happen(self) -> None:
        if self.effect is not None:
            loan, field, value = self.effect
            setattr(loan, field, value)
