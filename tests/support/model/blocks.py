"""Tables of the allocator model: blocks that tile segments, segments of pools, and statistics."""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay.records.model import State
from support.model.pool import KINDS, Counter

__all__ = ["Block", "Pool", "PrivatePool", "Segment", "Statistics"]

_METRICS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
_NAMES = dict(zip(KINDS, ("all", "small_pool", "large_pool"), strict=True))
_EVENT_COUNTS = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "num_oom_rejections",
)


@dataclass(eq=False)
class Block:
    """A part of a segment. In an expandable segment it may be unmapped."""

    address: int
    size: int
    rank: int  # among equal free blocks, the lowest rank is used first
    requested: int = 0  # kept when the block is freed
    state: State = State.FREE
    mapped: bool = True
    users: list[int] = field(default_factory=list)  # other streams that use it, in order
    marks: int = 0  # users not yet done since the block was freed
    searches: int = 0  # the pool's `searches` when the block became free

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass(eq=False)
class Pool:
    """Segments of one size class, of the default or a private pool."""

    id: tuple[int, int]
    small: bool
    segments: list[Segment] = field(default_factory=list)
    searches: int = 0

    def free(self) -> list[tuple[Segment, Block]]:
        """Return all free blocks, in search order."""
        found = [(s, b) for s in self.segments for b in s.blocks if b.mapped and b.state == State.FREE]
        return sorted(found, key=lambda pair: (pair[0].stream, pair[1].size, pair[1].rank, pair[1].address))


@dataclass(eq=False)
class Segment:
    """Memory from the device, or an expandable segment, whose pages are mapped and unmapped (`page` is not 0)."""

    address: int
    size: int
    stream: int
    pool: Pool
    blocks: list[Block]  # by address
    page: int = 0

    def neighbours(self, block: Block) -> tuple[Block | None, Block | None]:
        at = self.blocks.index(block)
        before = self.blocks[at - 1] if at else None
        return before, self.blocks[at + 1] if at + 1 < len(self.blocks) else None

    def split(self, block: Block, size: int, *, front: Block) -> None:
        """Make `front` the first `size` bytes of `block`, which keeps the remainder."""
        front.address, front.size = block.address, size
        block.address += size
        block.size -= size
        self.blocks.insert(self.blocks.index(block), front)

    def merge(self, block: Block, other: Block | None) -> int:
        """Merge a free neighbour into `block`. Return its size, or 0 if it cannot be merged."""
        if other is None or other.state != State.FREE or other.mapped != block.mapped:
            return 0
        block.address = min(block.address, other.address)
        block.size += other.size
        self.blocks.remove(other)
        return other.size


@dataclass(eq=False)
class PrivatePool:
    """Private pool of a MemPool or a graph."""

    id: tuple[int, int]
    no_split: bool = False
    users: int = 1  # the MemPool and each `use_pool` or capture; at 0 the memory may be released
    small: Pool = field(init=False)
    large: Pool = field(init=False)

    def __post_init__(self) -> None:
        self.small, self.large = Pool(self.id, small=True), Pool(self.id, small=False)


class Statistics:
    """All values of `memory_stats`."""

    def __init__(self) -> None:
        self.counters = {(metric, kind): Counter() for metric in _METRICS for kind in KINDS}
        self.oversize = {"allocations": Counter(), "segments": Counter()}
        self.calls = dict.fromkeys(_EVENT_COUNTS, 0)
        self.private: dict[tuple[int, int], dict[str, Counter]] = {}  # reserved bytes, by size class

    def add(self, pool: Pool, metric: str, change: int) -> None:
        size_classes = ("all", "small" if pool.small else "large")
        for size_class in size_classes:
            self.counters[metric, size_class].add(change)
        if metric == "reserved_bytes" and pool.id != (0, 0):
            counters = self.private.setdefault(pool.id, {kind: Counter() for kind in KINDS})
            for size_class in size_classes:
                counters[size_class].add(change)

    def all_counters(self) -> list[Counter]:
        private = [counter for counters in self.private.values() for counter in counters.values()]
        return [*self.counters.values(), *self.oversize.values(), *private]

    def reset_peaks(self) -> None:
        for counter in self.all_counters():
            counter.peak = counter.current

    def reset_accumulated(self) -> None:
        for counter in self.all_counters():
            counter.allocated = counter.freed = 0
        self.calls |= dict.fromkeys(_EVENT_COUNTS, 0)

    def flat(self) -> dict[str, int]:
        rows = {f"{metric}.{_NAMES[kind]}": counter for (metric, kind), counter in self.counters.items()}
        rows |= {f"oversize_{name}": counter for name, counter in self.oversize.items()}
        for (a, b), counters in self.private.items():
            rows |= {f"reserved_bytes_by_private_pools.{a}_{b}.{_NAMES[kind]}": c for kind, c in counters.items()}
        parts = ("current", "peak", "allocated", "freed")
        return {f"{row}.{part}": getattr(counter, part) for row, counter in rows.items() for part in parts} | self.calls
