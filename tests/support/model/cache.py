"""Cache of the allocator model: searching, splitting, merging and releasing blocks."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.records.model import State
from forebay.runtime.allocator.torch_iteration_order import pool_set, stream_set
from support.model.blocks import Block, Pool, PrivatePool, Segment, Statistics
from support.model.device_memory import Memory, Streams
from support.model.history import History
from support.model.pool import MIB
from support.model.settings import UNLIMITED, Settings

__all__ = ["Cache", "Request"]


class Request:
    """One allocation request."""

    def __init__(self, nbytes: int, stream: int, pool: Pool, settings: Settings) -> None:
        self.nbytes, self.stream, self.pool = nbytes, stream, pool
        self.size = settings.rounded(nbytes)
        self.segment_size = settings.segment_size(self.size)
        self.expandable = settings.expandable_segments


class Cache:
    """The tables of one device and all operations on them."""

    def __init__(self, memory: Memory, settings: Settings, index: int) -> None:
        self.index = index
        self.memory = memory
        self.streams = Streams()
        self.settings = settings
        self.statistics = Statistics()
        self.history = History()
        self.small, self.large = Pool((0, 0), small=True), Pool((0, 0), small=False)
        self.private: dict[tuple[int, int], PrivatePool] = {}
        self.unused = pool_set()  # private pools without users
        self.pending_streams = stream_set(index)
        self.pending: dict[int, list[tuple[int, Segment, Block]]] = {}  # by stream: marks, oldest first
        self.captured: list[int] = []  # streams under capture
        self.limit: int | None = None
        self.reserved = 0
        self.ranks = 0

    def __iter__(self) -> Iterator[Segment]:
        private = [pool for owner in self.private.values() for pool in (owner.small, owner.large)]
        for pool in (self.small, self.large, *private):
            yield from pool.segments

    def find(self, address: int) -> tuple[Segment, Block] | None:
        """Return the live block that begins at the address, with its segment."""
        blocks = ((s, b) for s in self for b in s.blocks if b.address == address and b.state == State.LIVE)
        return next(blocks, None)

    def next_rank(self) -> int:
        self.ranks += 1
        return self.ranks

    def record_event(self, action: str, segment: Segment, address: int, size: int) -> None:
        self.history.record_event(action, address, size, segment.stream, segment.pool.id)

    def expandable_size(self, pool: Pool) -> tuple[int, int]:
        """Return the size of a new expandable segment, and of its pages."""
        page = 2 * MIB if pool.small else self.settings.large_segment_size
        return -(-self.settings.reserved(self.memory.total) // page) * page, page

    def is_oversize(self, size: int) -> bool:
        return size >= self.settings.max_split_size

    # Allocation

    @property
    def collects_garbage(self) -> bool:
        return self.limit is not None and self.settings.garbage_collection_threshold > 0

    def search(self, request: Request, pool: Pool) -> tuple[Segment, Block] | None:
        """Return the best-fitting free block, if it may be used; no second candidate is tried."""
        pool.searches += self.collects_garbage
        fitting = [(s, b) for s, b in pool.free() if s.stream == request.stream and b.size >= request.size]
        if not fitting:
            return None
        if not request.expandable or pool is not request.pool:
            if fitting[0][0].page:
                fitting = [(s, b) for s, b in fitting if not s.page]
        else:  # among expandable blocks, the one that is smallest when grown
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

    def allocate_block(self, request: Request, segment: Segment, block: Block) -> int:
        """Allocate a free block, splitting it if the remainder is large enough. Return its address.

        Expandable segments do not count in `inactive_split`.
        """
        was_split = len(segment.blocks) > 1
        remainder = block
        rest = block.size - request.size
        fine_grained = segment.pool.small or request.expandable
        splits = rest >= 512 if fine_grained else rest > MIB and not self.is_oversize(request.size)
        owner = self.private.get(segment.pool.id)
        pieces = piece_bytes = 0
        if splits and not (owner and owner.no_split):
            block = Block(0, 0, remainder.rank)
            segment.split(remainder, request.size, front=block)
            remainder.searches = segment.pool.searches
            pieces, piece_bytes = (0, -block.size) if was_split else (1, remainder.size)
        elif was_split:
            pieces, piece_bytes = -1, -block.size
        if not segment.page:
            self.statistics.add(segment.pool, "inactive_split_bytes", piece_bytes)
            self.statistics.add(segment.pool, "inactive_split", pieces)
        block.state, block.requested = State.LIVE, request.nbytes
        self.record_event("alloc", segment, block.address, request.nbytes)
        self._count(segment.pool, block, 1, "allocation", "active")
        self.statistics.add(segment.pool, "requested_bytes", request.nbytes)
        self.statistics.oversize["allocations"].add(int(self.is_oversize(block.size)))
        return block.address

    def _count(self, pool: Pool, block: Block, sign: int, *metrics: str) -> None:
        for metric in metrics:
            self.statistics.add(pool, metric, sign)
            self.statistics.add(pool, metric.replace("allocation", "allocated") + "_bytes", sign * block.size)

    # Freeing

    def free(self, segment: Segment, block: Block) -> None:
        self._count(segment.pool, block, -1, "allocation")
        self.record_event("free_requested", segment, block.address, block.requested)
        self.statistics.oversize["allocations"].add(-self.is_oversize(block.size))
        if not block.users:
            return self.reclaim(segment, block)
        block.state = State.PENDING_FREE
        return self._mark(segment, block)

    def _mark(self, segment: Segment, block: Block) -> None:
        """Record a mark on every stream that used the block."""
        order = stream_set(self.index)
        for stream in block.users:
            order.add(stream)
        for stream in order:
            self.pending_streams.add(stream)
            self.pending.setdefault(stream, []).append((self.streams.mark(), segment, block))
            block.marks += 1
        block.users.clear()

    def process_pending_frees(self, *, wait: bool = False, only: PrivatePool | None = None) -> None:
        """Free the pending blocks whose users are done; with `wait`, wait for the users first."""
        for stream in self.pending_streams:
            marks = self.pending[stream]
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
                self.pending_streams.discard(stream)

    def reclaim(self, segment: Segment, block: Block) -> None:
        self.record_event("free_completed", segment, block.address, block.requested)
        size, block.state = block.size, State.FREE
        pieces = piece_bytes = 0
        for neighbour in segment.neighbours(block):
            merged = segment.merge(block, neighbour)
            pieces -= merged > 0
            piece_bytes -= merged
        block.searches = segment.pool.searches
        if len(segment.blocks) > 1:
            pieces += 1
            piece_bytes += block.size
        if not segment.page:
            self.statistics.add(segment.pool, "inactive_split", pieces)
            self.statistics.add(segment.pool, "inactive_split_bytes", piece_bytes)
        self.statistics.add(segment.pool, "active", -1)
        self.statistics.add(segment.pool, "active_bytes", -size)
        self.statistics.add(segment.pool, "requested_bytes", -block.requested)

    # Releasing memory to the device

    def release(self, segment: Segment) -> None:
        """Release a whole segment to the device, which completes all work first."""
        self.record_event("segment_free", segment, segment.address, segment.size)
        self.memory.release(segment.address, segment.size)
        self.streams.wait_for_all()
        segment.pool.segments.remove(segment)
        self.count_reserved(segment, -segment.size)
        self.statistics.add(segment.pool, "segment", -1)
        self.statistics.oversize["segments"].add(-self.is_oversize(segment.size))

    def count_reserved(self, segment: Segment, change: int) -> None:
        """Count a change of reserved memory."""
        self.reserved += change
        self.statistics.add(segment.pool, "reserved_bytes", change)
        self.statistics.calls["num_device_alloc" if change > 0 else "num_device_free"] += 1

    def unmap(self, segment: Segment, block: Block) -> None:
        """Unmap the pages that lie wholly in a free block."""
        start = segment.address + -(-(block.address - segment.address) // segment.page) * segment.page
        end = segment.address + (block.end - segment.address) // segment.page * segment.page
        if start >= end:
            return
        for cut in (end, start):  # partial pages on either side stay mapped
            if block.address < cut < block.end:
                at, middle = segment.blocks.index(block), block
                front = Block(block.address, cut - block.address, block.rank, searches=segment.pool.searches)
                back = Block(cut, block.end - cut, block.rank, searches=segment.pool.searches)
                kept = front if cut == end else back
                middle.address, middle.size = kept.address, kept.size
                segment.blocks[at : at + 1] = [middle, back] if cut == end else [front, middle]
        self.streams.wait(segment.stream)
        self.memory.used -= end - start
        block.mapped = False
        for neighbour in segment.neighbours(block):
            segment.merge(block, neighbour)
        self.count_reserved(segment, start - end)
        self.record_event("segment_unmap", segment, start, end - start)
        if len(segment.blocks) == 1:
            segment.pool.segments.remove(segment)
            self.memory.reservations.remove(segment.address)

    def release_free(self, pool: Pool) -> None:
        """Release all wholly free segments and unmap all free pages of a pool."""
        free = pool.free()
        for segment, _ in free:
            if not segment.page and len(segment.blocks) == 1:
                self.release(segment)
        for segment, block in free:
            if segment.page:
                self.unmap(segment, block)

    def release_all(self) -> None:
        self.statistics.calls["num_sync_all_streams"] += 1
        self.process_pending_frees(wait=True)
        self.release_free(self.large)
        self.release_free(self.small)
        for pool in self.unused:
            self.release_private(self.private[pool])

    def decref(self, owner: PrivatePool) -> None:
        """Remove one user of a private pool. Releases no memory yet."""
        owner.users -= 1
        if owner.users == 0:
            self.unused.add(owner.id)

    def release_private(self, owner: PrivatePool) -> None:
        """Release the free memory of an unused private pool, and remove the pool if it has no more memory."""
        self.release_free(owner.small)
        self.release_free(owner.large)
        if not owner.small.segments and not owner.large.segments:
            self.unused.discard(owner.id)
            del self.private[owner.id]

    def release_oversize(self, request: Request) -> bool:
        """Release the best-fitting oversize block, or the stream's largest ones. Return True if that is enough."""
        if self.settings.max_split_size == UNLIMITED:
            return False
        wanted = max(request.size, self.settings.max_split_size)
        own = [(s, b) for s, b in request.pool.free() if s.stream == request.stream and self.is_oversize(b.size)]
        own = [(s, b) for s, b in own if s.page or len(s.blocks) == 1]
        fitting = [(s, b) for s, b in own if b.size >= wanted]
        if fitting and not fitting[0][0].page:
            self.release(fitting[0][0])
            return True
        released = 0
        for segment, block in reversed([pair for pair in own if pair not in fitting]):
            if released < wanted and not segment.page:
                released += block.size
                self.release(segment)
        return released >= wanted

    def collect_garbage(self) -> None:
        """Release free segments older than the average until the threshold is met or none is left."""
        assert self.limit is not None
        surplus = self.reserved - int(self.settings.garbage_collection_threshold * self.limit)
        if surplus <= 0:
            return
        pool = self.large
        whole = [(s, b) for s, b in pool.free() if len(s.blocks) == 1]
        total_age, count = sum(pool.searches - b.searches for _, b in whole), len(whole)
        released, progress = 0, True
        while released < surplus and progress and count > 0:
            average, progress = total_age / count, False
            for segment, block in list(whole):
                age = pool.searches - block.searches
                if not segment.page and age >= average:
                    whole.remove((segment, block))
                    released += block.size
                    total_age -= age
                    count -= 1
                    progress = True
                    self.release(segment)


def _grown(segment: Segment, block: Block) -> int:
    """Return the size of a free block including the unmapped block after it."""
    _, after = segment.neighbours(block)
    return block.size + (after.size if after and not after.mapped else 0)
