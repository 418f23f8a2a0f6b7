"""A pool as one would explain it: sorted lists and plain counting. Where the native one differs, that one is wrong.

This is PyTorch's caching allocator with its default settings, as far as a pool goes: best fit per queue, splitting and
merging, blocks that wait for other queues, nine quantities. It is slow, and meant to be read and compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from forebay._core import METRICS, QUANTUM
from forebay.snapshot.model import State

__all__ = ["KINDS", "MIB", "Counter", "ModelBlock", "ModelPool", "ModelSegment", "rounded", "segment_size"]

MIB = 1 << 20
KINDS = ("all", "small", "large")


def rounded(nbytes: int) -> int:
    """What a block of `nbytes` takes."""
    return -(-nbytes // QUANTUM) * QUANTUM


def segment_size(nbytes: int, fine: bool = False) -> tuple[int, bool]:
    """What to ask a device for when no block of `nbytes` is free, and whether it is of the small kind."""
    size = rounded(nbytes)
    small = size <= MIB
    if fine:  # whole blocks, in steps of 64 KiB
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
    requested: int = 0  # a free block still shows what was asked for last, as PyTorch's do
    state: State = State.FREE
    uses: set[int] = field(default_factory=set)  # other queues that work on it


@dataclass
class ModelSegment:
    """Memory taken from a device; its blocks tile it, by address."""

    address: int
    size: int
    queue: int
    small: bool
    rank: int  # of equal free blocks, one of the segment with the lowest goes first
    blocks: list[ModelBlock]


@dataclass
class Counter:
    """One quantity over time."""

    current: int = 0
    peak: int = 0
    allocated: int = 0  # all that came
    freed: int = 0  # all that went

    def move(self, change: int) -> None:
        self.current += change
        self.peak = max(self.peak, self.current)
        if change > 0:
            self.allocated += change
        else:
            self.freed -= change


class ModelPool:
    """Blocks are named by their addresses; every method answers as the native pool's of the same name does."""

    def __init__(self) -> None:
        self.segments: list[ModelSegment] = []  # by address
        self.adopted = 0
        self.ledger = {(metric, kind): Counter() for metric in METRICS for kind in KINDS}

    def take(self, nbytes: int, queue: int = 0) -> int | None:
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
        rest = block.size - size
        if rest >= QUANTUM if small else rest > MIB:
            left_over = ModelBlock(block.address + size, rest, block.requested)
            segment.blocks.insert(segment.blocks.index(block) + 1, left_over)
            block.size = size
            if was_split:
                self._move(segment, "inactive_split_bytes", -size)
            else:
                self._move(segment, "inactive_split", 1)
                self._move(segment, "inactive_split_bytes", rest)
        elif was_split:
            self._move(segment, "inactive_split", -1)
            self._move(segment, "inactive_split_bytes", -block.size)

        block.state = State.LIVE
        block.requested = nbytes
        self._move(segment, "allocation", 1)
        self._move(segment, "allocated_bytes", block.size)
        self._move(segment, "active", 1)
        self._move(segment, "active_bytes", block.size)
        self._move(segment, "requested_bytes", nbytes)
        return block.address

    def use(self, address: int, queue: int) -> None:
        segment, block = self._find(address)
        if queue != segment.queue:
            block.uses.add(queue)

    def give(self, address: int) -> bool:
        """Whether the block now waits for other queues."""
        segment, block = self._find(address)
        self._move(segment, "allocation", -1)
        self._move(segment, "allocated_bytes", -block.size)
        if block.uses:
            block.state = State.AWAITING
            return True
        self._reclaim(segment, block)
        return False

    def settle(self, address: int) -> None:
        segment, block = self._find(address)
        block.uses.clear()
        self._reclaim(segment, block)

    def _reclaim(self, segment: ModelSegment, block: ModelBlock) -> None:
        self._move(segment, "active", -1)
        self._move(segment, "active_bytes", -block.size)
        self._move(segment, "requested_bytes", -block.requested)
        block.state = State.FREE

        pieces = piece_bytes = 0  # the change of both, which is noted at once
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
        self._move(segment, "inactive_split", pieces)
        self._move(segment, "inactive_split_bytes", piece_bytes)

    def adopt(self, address: int, size: int, queue: int, small: bool, rank: int | None = None) -> None:
        """PyTorch ranks segments by arrival since 2.10, and by address before: then `rank` is the address."""
        rank = self.adopted if rank is None else rank
        self.adopted += 1
        segment = ModelSegment(address, size, queue, small, rank, [ModelBlock(address, size)])
        self.segments = sorted([*self.segments, segment], key=lambda s: s.address)
        self._move(segment, "segment", 1)
        self._move(segment, "reserved_bytes", size)

    def evictable(self) -> list[tuple[int, int]]:
        """Address and size of each wholly free segment, those of the large kind first."""
        whole = [s for s in self.segments if len(s.blocks) == 1 and s.blocks[0].state == State.FREE]
        return [(s.address, s.size) for s in sorted(whole, key=lambda s: s.small)]

    def evict(self, address: int) -> bool:
        if address not in [start for start, _ in self.evictable()]:
            return False
        segment = next(s for s in self.segments if s.address == address)
        self.segments.remove(segment)
        self._move(segment, "segment", -1)
        self._move(segment, "reserved_bytes", -segment.size)
        return True

    def counts(self) -> list[int]:
        """Metrics, then kinds, then current, peak, allocated and freed."""
        return [n for c in self.ledger.values() for n in (c.current, c.peak, c.allocated, c.freed)]

    def reset_peaks(self) -> None:
        for counter in self.ledger.values():
            counter.peak = counter.current

    def reset_accumulated(self) -> None:
        for counter in self.ledger.values():
            counter.allocated = counter.freed = 0

    def __iter__(self) -> Iterator[tuple[ModelSegment, ModelBlock]]:
        """Every block with its segment, by address."""
        return ((segment, block) for segment in self.segments for block in segment.blocks)

    def _find(self, address: int) -> tuple[ModelSegment, ModelBlock]:
        segment = next(s for s in self.segments if s.address <= address < s.address + s.size)
        return segment, next(b for b in segment.blocks if b.address == address)

    def _move(self, segment: ModelSegment, metric: str, change: int) -> None:
        self.ledger[metric, "all"].move(change)
        self.ledger[metric, "small" if segment.small else "large"].move(change)
