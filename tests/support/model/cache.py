"""Blocks that were freed and what becomes of them: found again, split, merged, and given back to the device."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.runtime.allocator.torch_iteration_order import of_pools, of_streams
from forebay.snapshot.model import State
from support.model.blocks import Block, Ledger, Pool, PrivatePool, Segment
from support.model.history import History
from support.model.machine import Memory, Streams
from support.model.pool import MIB
from support.model.settings import UNLIMITED, Settings

__all__ = ["Cache", "Request"]


class Request:
    """One allocation on its way."""

    def __init__(self, nbytes: int, stream: int, pool: Pool, settings: Settings) -> None:
        self.nbytes, self.stream, self.pool = nbytes, stream, pool
        self.size = settings.rounded(nbytes)
        self.segment_size = settings.segment_size(self.size)
        self.expandable = settings.expandable_segments


class Cache:
    """The tables of one device and every step that changes them."""

    def __init__(self, memory: Memory, settings: Settings, index: int) -> None:
        self.index = index
        self.memory = memory
        self.streams = Streams()
        self.settings = settings
        self.ledger = Ledger()
        self.history = History()
        self.small, self.large = Pool((0, 0), small=True), Pool((0, 0), small=False)
        self.private: dict[tuple[int, int], PrivatePool] = {}
        self.unused = of_pools()  # private ones
        self.waiting_on = of_streams(index)
        self.waiting: dict[int, list[tuple[int, Segment, Block]]] = {}  # marks of each stream, oldest first
        self.captured: list[int] = []  # streams whose work goes into a graph
        self.limit: int | None = None
        self.reserved = 0
        self.ranks = 0

    def __iter__(self) -> Iterator[Segment]:
        private = [pool for owner in self.private.values() for pool in (owner.small, owner.large)]
        for pool in (self.small, self.large, *private):
            yield from pool.segments

    def find(self, address: int) -> tuple[Segment, Block] | None:
        """The live block that begins there."""
        blocks = ((s, b) for s in self for b in s.blocks if b.address == address and b.state == State.LIVE)
        return next(blocks, None)

    def next_rank(self) -> int:
        self.ranks += 1
        return self.ranks

    def note(self, action: str, segment: Segment, address: int, size: int) -> None:
        self.history.note(action, address, size, segment.stream, segment.pool.id)

    def reservation(self, pool: Pool) -> tuple[int, int]:
        """The size of a new reservation, and of its pages."""
        page = 2 * MIB if pool.small else self.settings.large_segment_size
        return -(-self.settings.reserved(self.memory.total) // page) * page, page

    def is_oversize(self, size: int) -> bool:
        return size >= self.settings.max_split_size

    # From free to live

    @property
    def collects(self) -> bool:
        return self.limit is not None and self.settings.garbage_collection_threshold > 0

    def search(self, request: Request, pool: Pool) -> tuple[Segment, Block] | None:
        """Best fit. It is not tried again with the second best."""
        pool.searches += self.collects
        fitting = [(s, b) for s, b in pool.free() if s.stream == request.stream and b.size >= request.size]
        if not fitting:
            return None
        if not request.expandable or pool is not request.pool:
            if fitting[0][0].page:
                fitting = [(s, b) for s, b in fitting if not s.page]
        else:  # of blocks that could grow, the one that would be smallest when it had
            while len(fitting) > 1 and fitting[0][0].page and _grown(*fitting[1]) < _grown(*fitting[0]):
                fitting.pop(0)
        if not fitting:
            return None
        size = fitting[0][1].size
        if self.is_oversize(size) and not self.is_oversize(request.size):
            return None
        if self.is_oversize(request.size) and size >= request.size + self.settings.max_non_split_rounding:
            return None
        return fitting[0]

    def hand_out(self, request: Request, segment: Segment, block: Block) -> int:
        """Split when the rest is worth it; of a split block inactive_split is told, of a reservation's it is not."""
        was_split = len(segment.blocks) > 1
        left = block
        rest = block.size - request.size
        fine = segment.pool.small or request.expandable
        worth_it = rest >= 512 if fine else rest > MIB and not self.is_oversize(request.size)
        owner = self.private.get(segment.pool.id)
        pieces = piece_bytes = 0
        if worth_it and not (owner and owner.no_split):
            block = Block(0, 0, left.rank)
            segment.split(left, request.size, front=block)
            left.searches = segment.pool.searches
            pieces, piece_bytes = (0, -block.size) if was_split else (1, left.size)
        elif was_split:
            pieces, piece_bytes = -1, -block.size
        if not segment.page:
            self.ledger.move(segment.pool, "inactive_split_bytes", piece_bytes)
            self.ledger.move(segment.pool, "inactive_split", pieces)
        block.state, block.requested = State.LIVE, request.nbytes
        self.note("alloc", segment, block.address, request.nbytes)
        self._count(segment.pool, block, 1, "allocation", "active")
        self.ledger.move(segment.pool, "requested_bytes", request.nbytes)
        self.ledger.oversize["allocations"].move(int(self.is_oversize(block.size)))
        return block.address

    def _count(self, pool: Pool, block: Block, sign: int, *metrics: str) -> None:
        for metric in metrics:
            self.ledger.move(pool, metric, sign)
            self.ledger.move(pool, metric.replace("allocation", "allocated") + "_bytes", sign * block.size)

    # From live to free

    def give(self, segment: Segment, block: Block) -> None:
        self._count(segment.pool, block, -1, "allocation")
        self.note("free_requested", segment, block.address, block.requested)
        self.ledger.oversize["allocations"].move(-self.is_oversize(block.size))
        if not block.uses:
            return self.reclaim(segment, block)
        block.state = State.AWAITING
        return self._mark(segment, block)

    def _mark(self, segment: Segment, block: Block) -> None:
        """On every stream that used it, to learn when they are done."""
        order = of_streams(self.index)
        for stream in block.uses:
            order.add(stream)
        for stream in order:
            self.waiting_on.add(stream)
            self.waiting.setdefault(stream, []).append((self.streams.mark(), segment, block))
            block.marks += 1
        block.uses.clear()

    def settle(self, *, wait: bool = False, only: PrivatePool | None = None) -> None:
        """Reclaim what other streams are done with: as far as they are, or after waiting for them."""
        for stream in self.waiting_on:
            marks = self.waiting[stream]
            for entry in list(marks):
                mark, segment, block = entry
                if only and segment.pool not in (only.small, only.large):
                    continue
                if wait:
                    self.streams.wait(stream, mark)
                elif not self.streams.reached(stream, mark):
                    break
                marks.remove(entry)
                block.marks -= 1
                if not block.marks:
                    self.reclaim(segment, block)
            if not marks:
                self.waiting_on.discard(stream)

    def reclaim(self, segment: Segment, block: Block) -> None:
        self.note("free_completed", segment, block.address, block.requested)
        size, block.state = block.size, State.FREE
        pieces = piece_bytes = 0
        for neighbour in segment.neighbours(block):
            taken_in = segment.merge(block, neighbour)
            pieces -= taken_in > 0
            piece_bytes -= taken_in
        block.searches = segment.pool.searches
        if len(segment.blocks) > 1:
            pieces += 1
            piece_bytes += block.size
        if not segment.page:
            self.ledger.move(segment.pool, "inactive_split", pieces)
            self.ledger.move(segment.pool, "inactive_split_bytes", piece_bytes)
        self.ledger.move(segment.pool, "active", -1)
        self.ledger.move(segment.pool, "active_bytes", -size)
        self.ledger.move(segment.pool, "requested_bytes", -block.requested)

    # From free to the device

    def release(self, segment: Segment) -> None:
        """Give a whole segment back. The device ends all work first."""
        self.note("segment_free", segment, segment.address, segment.size)
        self.memory.release(segment.address, segment.size)
        self.streams.wait_for_all()
        segment.pool.segments.remove(segment)
        self.resize(segment, -segment.size)
        self.ledger.move(segment.pool, "segment", -1)
        self.ledger.oversize["segments"].move(-self.is_oversize(segment.size))

    def resize(self, segment: Segment, change: int) -> None:
        """What every kind of growing and shrinking counts."""
        self.reserved += change
        self.ledger.move(segment.pool, "reserved_bytes", change)
        self.ledger.calls["num_device_alloc" if change > 0 else "num_device_free"] += 1

    def unmap(self, segment: Segment, block: Block) -> None:
        """Give back the pages that lie wholly in a free block."""
        start = segment.address + -(-(block.address - segment.address) // segment.page) * segment.page
        end = segment.address + (block.end - segment.address) // segment.page * segment.page
        if start >= end:
            return
        for cut in (end, start):  # what is left over on either side stays mapped
            if block.address < cut < block.end:
                at, left = segment.blocks.index(block), block
                front = Block(block.address, cut - block.address, block.rank, searches=segment.pool.searches)
                back = Block(cut, block.end - cut, block.rank, searches=segment.pool.searches)
                kept = front if cut == end else back
                left.address, left.size = kept.address, kept.size
                segment.blocks[at : at + 1] = [left, back] if cut == end else [front, left]
        self.streams.wait(segment.stream)
        self.memory.used -= end - start
        block.mapped = False
        for neighbour in segment.neighbours(block):
            segment.merge(block, neighbour)
        self.resize(segment, start - end)
        self.note("segment_unmap", segment, start, end - start)
        if len(segment.blocks) == 1:
            segment.pool.segments.remove(segment)
            self.memory.reservations.remove(segment.address)

    def release_free(self, pool: Pool) -> None:
        """All segments without a live block, and all pages."""
        free = pool.free()
        for segment, _ in free:
            if not segment.page and len(segment.blocks) == 1:
                self.release(segment)
        for segment, block in free:
            if segment.page:
                self.unmap(segment, block)

    def release_all(self) -> None:
        self.ledger.calls["num_sync_all_streams"] += 1
        self.settle(wait=True)
        self.release_free(self.large)
        self.release_free(self.small)
        for pool in self.unused:
            self.release_private(self.private[pool])

    def leave(self, owner: PrivatePool) -> None:
        """One user of a private pool less. Nothing goes back to the device yet."""
        owner.users -= 1
        if owner.users == 0:
            self.unused.add(owner.id)

    def release_private(self, owner: PrivatePool) -> None:
        """What is free of a pool that nobody uses, and with the last of it the pool."""
        self.release_free(owner.small)
        self.release_free(owner.large)
        if not owner.small.segments and not owner.large.segments:
            self.unused.discard(owner.id)
            del self.private[owner.id]

    def release_oversize(self, request: Request) -> bool:
        """Whether as much as asked for went: the best fitting oversize block, or the largest ones of the stream."""
        if self.settings.max_split_size == UNLIMITED:
            return False
        wanted = max(request.size, self.settings.max_split_size)
        mine = [(s, b) for s, b in request.pool.free() if s.stream == request.stream and self.is_oversize(b.size)]
        mine = [(s, b) for s, b in mine if s.page or len(s.blocks) == 1]
        fitting = [(s, b) for s, b in mine if b.size >= wanted]
        if fitting and not fitting[0][0].page:
            self.release(fitting[0][0])
            return True
        gone = 0
        for segment, block in reversed([pair for pair in mine if pair not in fitting]):
            if gone < wanted and not segment.page:
                gone += block.size
                self.release(segment)
        return gone >= wanted

    def collect(self) -> None:
        """Release segments that were not reused for longer than the average, until enough went or nothing more does."""
        assert self.limit is not None
        surplus = self.reserved - int(self.settings.garbage_collection_threshold * self.limit)
        if surplus <= 0:
            return
        pool = self.large
        whole = [(s, b) for s, b in pool.free() if len(s.blocks) == 1]
        total_age, count = sum(pool.searches - b.searches for _, b in whole), len(whole)
        gone, released = 0, True
        while gone < surplus and released and count > 0:
            average, released = total_age / count, False
            for segment, block in list(whole):
                age = pool.searches - block.searches
                if not segment.page and age >= average:
                    whole.remove((segment, block))
                    gone += block.size
                    total_age -= age
                    count -= 1
                    released = True
                    self.release(segment)


def _grown(segment: Segment, block: Block) -> int:
    """The size of a free block with the unmapped one behind it."""
    _, after = segment.neighbours(block)
    return block.size + (after.size if after and not after.mapped else 0)
