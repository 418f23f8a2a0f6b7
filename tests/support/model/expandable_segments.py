"""Growth of the allocator model: a new segment, or more pages of an expandable segment."""

from __future__ import annotations

from forebay.errors import OutOfMemory
from forebay.records.model import State
from support.model.blocks import Block, Segment
from support.model.cache import Cache, Request
from support.model.settings import format_size

__all__ = ["grow"]


def grow(cache: Cache, request: Request) -> tuple[Segment, Block] | None:
    """Return a new free block that is large enough; None if the limit or the device's memory is exhausted."""
    if cache.limit is not None and cache.reserved + request.segment_size > cache.limit:
        return None
    reject_above = int(cache.settings.per_process_memory_fraction * cache.memory.total)
    if cache.settings.throw_on_cudamalloc_oom and cache.reserved + request.segment_size > reject_above:
        cache.statistics.calls["num_oom_rejections"] += 1
        raise OutOfMemory(
            "CUDA out of memory. Allocation was preemptively rejected because it would exceed"
            f" per_process_memory_fraction limit. Requested size: {format_size(request.nbytes)}"
        )
    if request.expandable:
        return _expand(cache, request)
    address = cache.memory.allocate(request.segment_size)
    if address is None:
        return None
    block = Block(address, request.segment_size, cache.next_rank())
    segment = Segment(address, block.size, request.stream, request.pool, [block])
    request.pool.segments.append(segment)
    cache.count_reserved(segment, segment.size)
    cache.statistics.add(segment.pool, "segment", 1)
    cache.statistics.oversize["segments"].add(int(cache.is_oversize(segment.size)))
    cache.record_event("segment_alloc", segment, address, segment.size)
    return segment, block


def _expand(cache: Cache, request: Request) -> tuple[Segment, Block] | None:
    found = _find_space(cache, request)
    if found is None:
        return None
    segment, block = found
    if not block.mapped and not _map(cache, segment, block, min(block.size, request.size)):
        return None
    while block.size < request.size:  # the block after one that is too small is unmapped
        _, after = segment.neighbours(block)
        assert after is not None
        if not _map(cache, segment, after, min(after.size, request.size - block.size)):
            return None
        block = after  # the previous block was merged into it
    return segment, block


def _find_space(cache: Cache, request: Request) -> tuple[Segment, Block] | None:
    """Return the first of adjacent free and unmapped blocks that suffice, in an old or a new expandable segment."""
    pool = request.pool
    unmapped = [(s, b) for s in pool.segments if s.stream == request.stream for b in s.blocks if not b.mapped]
    for segment, gap in sorted(unmapped, key=lambda pair: pair[1].address):
        before, _ = segment.neighbours(gap)
        first = before if before and before.state == State.FREE else gap
        space = 0
        for block in segment.blocks[segment.blocks.index(first) :]:
            if block.state != State.FREE or space >= request.size:
                break
            space += block.size
        if space >= request.size:
            return segment, first
    size, page = cache.expandable_size(pool)
    if size < request.size:
        return None
    address = cache.memory.reservations.place(size)
    block = Block(address, size, cache.next_rank(), mapped=False)
    segment = Segment(address, size, request.stream, pool, [block], page)
    pool.segments.append(segment)
    return segment, block


def _map(cache: Cache, segment: Segment, block: Block, size: int) -> bool:
    """Map pages at the beginning of an unmapped block, all or none."""
    pages = -(-size // segment.page)
    size = pages * segment.page
    for mapped in range(pages):
        if not cache.memory.reserve(segment.page):
            cache.memory.used -= mapped * segment.page
            return False
    address = block.address
    if size < block.size:
        rest = Block(address + size, block.size - size, block.rank, mapped=False)
        segment.blocks.insert(segment.blocks.index(block) + 1, rest)
        block.size = size
    block.mapped = True
    for neighbour in segment.neighbours(block):
        segment.merge(block, neighbour)
    block.searches = segment.pool.searches
    cache.count_reserved(segment, size)
    cache.record_event("segment_map", segment, address, size)
    return True
