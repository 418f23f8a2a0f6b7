"""Reference model of a pool: PyTorch's caching allocator with default settings, without the device.

Best fit per queue, splitting and merging, pending frees, nine statistics; implemented with sorted lists and plain
counting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from forebay._core import METRICS, MIN_BLOCK_SIZE
from forebay.records.model import State

__all__ = ["KINDS", "MIB", "Counter", "ModelBlock", "ModelPool", "ModelSegment", "rounded", "segment_size"]

MIB = 1 << 20
KINDS = ("all", "small", "large")


def rounded(nbytes: int) -> int:
    """Return the block size of a request."""
    return -(-nbytes // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE


def segment_size(nbytes: int, fine: bool = False) -> tuple[int, bool]:
    """Return the segment size to reserve for a request, and whether it is of the small class."""
    size = rounded(nbytes)
    small = size <= MIB
    if fine:  # whole blocks only, rounded up to 64 KiB
        least = -(-2 * MIB // size) * size if small else size
        return -(-least // (MIB // 16)) * (MIB // 16), small
    if small:
        return 2 * MIB, True
    if size < 10 * MIB:
        return 20 * MIB, False
    return -(-size // (2 * MIB)) * 2 * MIB, False


@dataclass
class ModelBlock:
    """A piece of a segment."""

    address: int
    size: int
    requested: int = 0  # a free block keeps its last requested size, as in PyTorch
    state: State = State.FREE
    users: set[int] = field(default_factory=set)  # other queues that use the block


@dataclass
class ModelSegment:
    """Memory reserved from a device, tiled by blocks in address order."""

    address: int
    size: int
    queue: int
    small: bool
    rank: int  # among equal free blocks, the segment with the lowest rank is used first
    blocks: list[ModelBlock]


@dataclass
class Counter:
    """One statistic."""

    current: int = 0
    peak: int = 0
    allocated: int = 0  # total of all increases
    freed: int = 0  # total of all decreases

    def add(self, change: int) -> None:
        self.current += change
        self.peak = max(self.peak, self.current)
        if change > 0:
            self.allocated += change
        else:
            self.freed -= change


class ModelPool:
    """Pool whose blocks are identified by address. Each method returns what the native pool's counterpart does."""

    def __init__(self) -> None:
        self.segments: list[ModelSegment] = []  # by address
        self.adopted_segments = 0
        self.statistics = {(metric, kind): Counter() for metric in METRICS for kind in KINDS}

    def try_allocate(self, nbytes: int, queue: int = 0) -> int | None:
        """Allocate from the free blocks. Return the address, or None if no block fits."""
        size = rounded(nbytes)
        small = size <= MIB
        fitting = [
            (block.size, segment.rank, block.address, segment, block)
            for segment in self.segments
            if segment.queue == queue and segment.small == small
            for block in segment.blocks
            if block.state == State.FREE and block.size >= size
        ]
        if not fitting:
            return None
        *_, segment, block = min(fitting, key=lambda found: found[:3])

        was_split = len(segment.blocks) > 1
        remaining = block.size - size
        if remaining >= MIN_BLOCK_SIZE if small else remaining > MIB:
            remainder = ModelBlock(block.address + size, remaining, block.requested)
            segment.blocks.insert(segment.blocks.index(block) + 1, remainder)
            block.size = size
            if was_split:
                self._count(segment, "inactive_split_bytes", -size)
            else:
                self._count(segment, "inactive_split", 1)
                self._count(segment, "inactive_split_bytes", remaining)
        elif was_split:
            self._count(segment, "inactive_split", -1)
            self._count(segment, "inactive_split_bytes", -block.size)

        block.state = State.LIVE
        block.requested = nbytes
        self._count(segment, "allocation", 1)
        self._count(segment, "allocated_bytes", block.size)
        self._count(segment, "active", 1)
        self._count(segment, "active_bytes", block.size)
        self._count(segment, "requested_bytes", nbytes)
        return block.address

    def record_stream(self, address: int, queue: int) -> None:
        segment, block = self._find(address)
        if queue != segment.queue:
            block.users.add(queue)

    def free(self, address: int) -> bool:
        """Free a block. Return True if it is pending because other queues use it."""
        segment, block = self._find(address)
        self._count(segment, "allocation", -1)
        self._count(segment, "allocated_bytes", -block.size)
        if block.users:
            block.state = State.PENDING_FREE
            return True
        self._reclaim(segment, block)
        return False

    def complete_free(self, address: int) -> None:
        """Free a pending block whose users are done."""
        segment, block = self._find(address)
        block.users.clear()
        self._reclaim(segment, block)

    def _reclaim(self, segment: ModelSegment, block: ModelBlock) -> None:
        self._count(segment, "active", -1)
        self._count(segment, "active_bytes", -block.size)
        self._count(segment, "requested_bytes", -block.requested)
        block.state = State.FREE

        pieces = piece_bytes = 0  # changes, counted once at the end
        at = segment.blocks.index(block)
        for neighbour in (*segment.blocks[max(at - 1, 0) : at], *segment.blocks[at + 1 : at + 2]):
            if neighbour.state == State.FREE:
                pieces -= 1
                piece_bytes -= neighbour.size
                block.address = min(block.address, neighbour.address)
                block.size += neighbour.size
                segment.blocks.remove(neighbour)
        if len(segment.blocks) > 1:
            pieces += 1
            piece_bytes += block.size
        self._count(segment, "inactive_split", pieces)
        self._count(segment, "inactive_split_bytes", piece_bytes)

    def adopt(self, address: int, size: int, queue: int, small: bool, rank: int | None = None) -> None:
        """Add a segment. PyTorch ranks segments by arrival since 2.10, before by address (pass it as `rank`)."""
        rank = self.adopted_segments if rank is None else rank
        self.adopted_segments += 1
        segment = ModelSegment(address, size, queue, small, rank, [ModelBlock(address, size)])
        self.segments = sorted([*self.segments, segment], key=lambda s: s.address)
        self._count(segment, "segment", 1)
        self._count(segment, "reserved_bytes", size)

    def evictable(self) -> list[tuple[int, int]]:
        """Return address and size of each wholly free segment, large ones first."""
        whole = [s for s in self.segments if len(s.blocks) == 1 and s.blocks[0].state == State.FREE]
        return [(s.address, s.size) for s in sorted(whole, key=lambda s: s.small)]

    def evict(self, address: int) -> bool:
        if address not in [start for start, _ in self.evictable()]:
            return False
        segment = next(s for s in self.segments if s.address == address)
        self.segments.remove(segment)
        self._count(segment, "segment", -1)
        self._count(segment, "reserved_bytes", -segment.size)
        return True

    def counts(self) -> list[int]:
        """Return current, peak, allocated and freed, by metric and then size class."""
        return [n for c in self.statistics.values() for n in (c.current, c.peak, c.allocated, c.freed)]

    def reset_peaks(self) -> None:
        for counter in self.statistics.values():
            counter.peak = counter.current

    def reset_accumulated(self) -> None:
        for counter in self.statistics.values():
            counter.allocated = counter.freed = 0

    def __iter__(self) -> Iterator[tuple[ModelSegment, ModelBlock]]:
        """Iterate over all blocks with their segments, by address."""
        return ((segment, block) for segment in self.segments for block in segment.blocks)

    def _find(self, address: int) -> tuple[ModelSegment, ModelBlock]:
        segment = next(s for s in self.segments if s.address <= address < s.address + s.size)
        return segment, next(b for b in segment.blocks if b.address == address)

    def _count(self, segment: ModelSegment, metric: str, change: int) -> None:
        self.statistics[metric, "all"].add(change)
        self.statistics[metric, "small" if segment.small else "large"].add(change)
