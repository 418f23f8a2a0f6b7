"""Which cached segments to give back when memory gets short, but before all of them go (torch-semantics 3.6, 3.8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay._core import Pool
    from forebay.runtime.allocator.expandable_segments import Request

__all__ = ["collect_old", "collect_oversize"]

_Release = Callable[[list[int]], object]  # gives the segments at these addresses back


def collect_old(pool: Pool, surplus: int, release: _Release) -> None:
    """Large segments that lay idle for longer than the average, until `surplus` bytes went or nothing more does."""
    idle = pool.evictable(small=False, growing=True)
    total_age = sum(age for *_, age, _ in idle)
    while idle and surplus > 0:
        average = total_age / len(idle)
        old = [row for row in idle if row[3] >= average and not row[4]]
        if not old:
            return
        surplus -= sum(row[1] for row in old)
        total_age -= sum(row[3] for row in old)
        idle = [row for row in idle if row[3] < average or row[4]]
        release([row[0] for row in old])


def collect_oversize(pool: Pool, request: Request, max_split: int, release: _Release) -> bool:
    """The smallest idle segment of `max_split` or more that would serve, or as many of the largest as are needed."""
    wanted = max(request.size, max_split)
    rows = pool.evictable(request.small, request.home, pieces=True)
    mine = [(size, address, grows) for address, size, queue, _, grows in rows if queue == request.queue]
    mine = [row for row in mine if row[0] >= max_split]
    fitting = next(((address, grows) for size, address, grows in mine if size >= wanted), None)
    if fitting is not None and not fitting[1]:  # and when it is a piece of a growing segment, no larger one goes
        release([fitting[0]])
        return True
    going = []
    for size, address in reversed([(size, address) for size, address, grows in mine if size < wanted and not grows]):
        if wanted <= 0:
            break
        wanted -= size
        going.append(address)
    release(going)
    return wanted <= 0
