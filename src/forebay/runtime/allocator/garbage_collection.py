"""Selection of cached segments to release under memory pressure, before the whole cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay._core import Pool
    from forebay.runtime.allocator.request import AllocRequest

__all__ = ["release_oversize_segments", "release_segments_older_than_average"]

_Release = Callable[[list[int], int], object]  # releases the segments at these addresses; the second is a stack


def release_segments_older_than_average(pool: Pool, request: AllocRequest, surplus: int, release: _Release) -> None:
    """Release free large segments older than the average, repeatedly, until `surplus` bytes are released."""
    free = pool.evictable(small=False, expandable=True)
    total_age = sum(row[3] for row in free)
    while free and surplus > 0:
        average = total_age / len(free)
        old = [row for row in free if row[3] >= average and not row[4]]
        if not old:
            return
        surplus -= sum(row[1] for row in old)
        total_age -= sum(row[3] for row in old)
        free = [row for row in free if row[3] < average or row[4]]
        release([row[0] for row in old], request.stack)


def release_oversize_segments(pool: Pool, request: AllocRequest, max_split: int, release: _Release) -> bool:
    """Release the smallest free segment that fits and is not below `max_split`, or else as many large ones as needed.

    Return True if enough bytes for the request were released.
    """
    wanted = max(request.size, max_split)
    rows = pool.evictable(request.small, request.pool_number, parts=True)
    candidates = [(size, address, grows) for address, size, queue, _, grows, _ in rows if queue == request.queue]
    candidates = [row for row in candidates if row[0] >= max_split]
    fitting = next(((address, grows) for size, address, grows in candidates if size >= wanted), None)
    if fitting is not None and not fitting[1]:  # if it is part of an expandable segment, no larger one is released
        release([fitting[0]], request.stack)
        return True
    chosen = []
    smaller = [(size, address) for size, address, grows in candidates if size < wanted and not grows]
    for size, address in reversed(smaller):
        if wanted <= 0:
            break
        wanted -= size
        chosen.append(address)
    release(chosen, request.stack)
    return wanted <= 0
