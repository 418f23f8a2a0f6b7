"""Transitions of the pinned allocator's tables: each function returns an update from one version to the next."""

from __future__ import annotations

from collections.abc import Callable

from forebay.runtime.pinned.tables import Bucket, HostBlock, PinnedLease, SideEffect, Stat, Tables, Times, Transition

__all__ = [
    "active_totals",
    "add_block",
    "allocate_cached",
    "allocate_from_segment",
    "bucket_index",
    "claim_unpin",
    "evict_all",
    "free_block",
    "reset_accumulated",
    "reset_peaks",
    "set_segment",
    "unpin_done",
    "unpin_failed",
    "update_stat",
]

_SEGMENT_ALIGNMENT = 4096  # bytes, of each block in the reserved segment


def bucket_index(size: int) -> int:
    return (size - 1).bit_length()


def update_stat(stat: Stat, change: int) -> Stat:
    current, peak, allocated, freed = stat
    current += change
    return current, max(peak, current), allocated + max(change, 0), freed + max(-change, 0)


def active_totals(tables: Tables) -> tuple[Stat, Stat]:
    """Return requests and bytes in use. As in PyTorch, each peak is the sum of the peaks of the buckets."""
    buckets = tables.buckets.values()
    requests = [sum(bucket.requests[i] for bucket in buckets) for i in range(4)]
    nbytes = [sum(bucket.nbytes[i] for bucket in buckets) for i in range(4)]
    return tuple(requests), tuple(nbytes)  # type: ignore[return-value]  # of four


def _update_bucket(bucket: Bucket, block: HostBlock, sign: int, free: tuple[HostBlock, ...]) -> Bucket:
    return Bucket(free, update_stat(bucket.requests, sign), update_stat(bucket.nbytes, sign * block.size))


def allocate_cached(size: int, lease: PinnedLease) -> Transition:
    """Allocate the most recently freed block of the bucket that is large enough."""

    def transition(tables: Tables) -> tuple[Tables, SideEffect] | None:
        bucket = tables.buckets.get(bucket_index(size), Bucket())
        for at in reversed(range(len(bucket.free))):
            block = bucket.free[at]
            if block.size >= size:
                free = bucket.free[:at] + bucket.free[at + 1 :]
                buckets = {**tables.buckets, bucket_index(size): _update_bucket(bucket, block, 1, free)}
                return tables._replace(buckets=buckets), (lease, "block", block)
        return None

    return transition


def add_block(block: HostBlock, lease: PinnedLease, duration: int | None) -> Transition:
    """Add a newly pinned block, in use; `duration` is the time the driver took to pin it, in µs."""

    def transition(tables: Tables) -> tuple[Tables, SideEffect]:
        at = bucket_index(block.size)
        bucket = tables.buckets.get(at, Bucket())
        return tables._replace(
            buckets={**tables.buckets, at: _update_bucket(bucket, block, 1, bucket.free)},
            allocations=update_stat(tables.allocations, 1),
            nbytes=update_stat(tables.nbytes, block.size),
            pin_times=tables.pin_times if duration is None else tables.pin_times.add(duration),
        ), (lease, "block", block)

    return transition


def free_block(lease: PinnedLease, max_cached_size: int) -> Transition:
    """Free the lease's block, once; evict the block if it has more than `max_cached_size` bytes, else cache it."""

    def transition(tables: Tables) -> tuple[Tables, SideEffect] | None:
        block = lease.block
        if block is None or lease.returned:
            return None
        at = bucket_index(block.size)
        bucket = tables.buckets[at]
        evict = block.size > max_cached_size
        free = bucket.free if evict else (*bucket.free, block)
        buckets = {**tables.buckets, at: _update_bucket(bucket, block, -1, free)}
        evicted = (*tables.evicted, block) if evict else tables.evicted
        return tables._replace(buckets=buckets, evicted=evicted), (lease, "returned", True)

    return transition


def evict_all(tables: Tables) -> tuple[Tables, None] | None:
    """Evict all free blocks, those of the smallest bucket first."""
    free = tuple(block for at in sorted(tables.buckets) for block in tables.buckets[at].free)
    if not free:
        return None
    buckets = {at: bucket._replace(free=()) for at, bucket in tables.buckets.items()}
    return tables._replace(buckets=buckets, evicted=(*tables.evicted, *free)), None


def claim_unpin(block: HostBlock, claim: object) -> Transition:
    """Claim an evicted block; only the caller whose claim succeeds may unpin the block."""

    def transition(tables: Tables) -> tuple[Tables, None] | None:
        try:
            at = tables.evicted.index(block)
        except ValueError:
            return None
        evicted = tables.evicted[:at] + tables.evicted[at + 1 :]
        return tables._replace(evicted=evicted, unpinning=(*tables.unpinning, (block, claim))), None

    return transition


def unpin_done(block: HostBlock, claim: object, duration: int | None) -> Transition:
    """Remove a block that was unpinned; `duration` is the time the driver took, in µs."""

    def transition(tables: Tables) -> tuple[Tables, None] | None:
        if (block, claim) not in tables.unpinning:
            return None
        segment_blocks = tables.segment_blocks - block.reserved
        return tables._replace(
            unpinning=tuple(each for each in tables.unpinning if each != (block, claim)),
            allocations=update_stat(tables.allocations, -1),
            nbytes=update_stat(tables.nbytes, -block.size),
            unpin_times=tables.unpin_times if duration is None else tables.unpin_times.add(duration),
            segment_blocks=segment_blocks,
            segment_used=tables.segment_used if segment_blocks else 0,
        ), None

    return transition


def unpin_failed(block: HostBlock, claim: object) -> Transition:
    """Return to the cache a block that could not be unpinned, as the last candidate for reuse."""

    def transition(tables: Tables) -> tuple[Tables, None] | None:
        if (block, claim) not in tables.unpinning:
            return None
        bucket = tables.buckets[bucket_index(block.size)]
        buckets = {**tables.buckets, bucket_index(block.size): bucket._replace(free=(block, *bucket.free))}
        unpinning = tuple(each for each in tables.unpinning if each != (block, claim))
        return tables._replace(buckets=buckets, unpinning=unpinning), None

    return transition


def set_segment(address: int, size: int, duration: int | None) -> Transition:
    """Set the reserved segment, or disable it with size 0. Only the first call changes anything."""

    def transition(tables: Tables) -> tuple[Tables, None] | None:
        if tables.segment is not None:
            return None
        pin_times = tables.pin_times if duration is None else tables.pin_times.add(duration)
        return tables._replace(segment=(address, size), pin_times=pin_times), None

    return transition


def allocate_from_segment(size: int, lease: PinnedLease) -> Transition:
    """Allocate the next part of the reserved segment.

    Freed parts are cached as blocks; the segment is split anew only after all of its blocks were evicted.
    """

    def transition(tables: Tables) -> tuple[Tables, SideEffect | None] | None:
        address, capacity = tables.segment or (0, 0)
        used = tables.segment_used + -(-size // _SEGMENT_ALIGNMENT) * _SEGMENT_ALIGNMENT
        if used > capacity:
            return None
        block = HostBlock(address + tables.segment_used, size, reserved=True)
        tables = tables._replace(segment_used=used, segment_blocks=tables.segment_blocks + 1)
        return add_block(block, lease, None)(tables)

    return transition


def reset_peaks(tables: Tables) -> tuple[Tables, None]:
    return _map_stats(tables, lambda stat: (stat[0], stat[0], stat[2], stat[3]), lambda times: times.without_peaks())


def reset_accumulated(tables: Tables) -> tuple[Tables, None]:
    return _map_stats(tables, lambda stat: (stat[0], stat[1], 0, 0), lambda times: times.without_totals())


def _map_stats(tables: Tables, stat: Callable[[Stat], Stat], times: Callable[[Times], Times]) -> tuple[Tables, None]:
    buckets = {
        at: Bucket(bucket.free, stat(bucket.requests), stat(bucket.nbytes)) for at, bucket in tables.buckets.items()
    }
    return tables._replace(
        buckets=buckets,
        allocations=stat(tables.allocations),
        nbytes=stat(tables.nbytes),
        pin_times=times(tables.pin_times),
        unpin_times=times(tables.unpin_times),
    ), None
