"""Each change to the pinned allocator's tables, as a function from one version to the next."""

from __future__ import annotations

from collections.abc import Callable

from forebay.runtime.pinned.tables import Bucket, Count, Effect, HostBlock, Loan, Step, Tables, Times

__all__ = [
    "adopt",
    "bucket_of",
    "claim",
    "clear",
    "counted",
    "cut",
    "give_back",
    "gone",
    "in_use",
    "reserve",
    "reset_peaks",
    "reset_sums",
    "stay",
    "take",
]

_PART = 4096  # what the reserved segment is cut into, at least


def bucket_of(size: int) -> int:
    return (size - 1).bit_length()


def counted(count: Count, change: int) -> Count:
    current, peak, allocated, freed = count
    current += change
    return current, max(peak, current), allocated + max(change, 0), freed + max(-change, 0)


def in_use(tables: Tables) -> tuple[Count, Count]:
    """Requests and bytes in use. Peaks are the buckets' peaks added up, whenever those were, as PyTorch has it."""
    buckets = tables.buckets.values()
    requests = [sum(bucket.requests[i] for bucket in buckets) for i in range(4)]
    nbytes = [sum(bucket.nbytes[i] for bucket in buckets) for i in range(4)]
    return tuple(requests), tuple(nbytes)  # type: ignore[return-value]  # of four


def _used(bucket: Bucket, block: HostBlock, sign: int, free: tuple[HostBlock, ...]) -> Bucket:
    return Bucket(free, counted(bucket.requests, sign), counted(bucket.nbytes, sign * block.size))


def take(size: int, loan: Loan) -> Step:
    """The newest free block of the bucket that is large enough."""

    def step(tables: Tables) -> tuple[Tables, Effect] | None:
        bucket = tables.buckets.get(bucket_of(size), Bucket())
        for at in reversed(range(len(bucket.free))):
            block = bucket.free[at]
            if block.size >= size:
                free = bucket.free[:at] + bucket.free[at + 1 :]
                buckets = {**tables.buckets, bucket_of(size): _used(bucket, block, 1, free)}
                return tables._replace(buckets=buckets), (loan, "block", block)
        return None

    return step


def adopt(block: HostBlock, loan: Loan, took: int | None) -> Step:
    """A new block, in use; `took` is how long pinning it did, in µs."""

    def step(tables: Tables) -> tuple[Tables, Effect]:
        at = bucket_of(block.size)
        bucket = tables.buckets.get(at, Bucket())
        return tables._replace(
            buckets={**tables.buckets, at: _used(bucket, block, 1, bucket.free)},
            allocations=counted(tables.allocations, 1),
            nbytes=counted(tables.nbytes, block.size),
            pinning=tables.pinning if took is None else tables.pinning.and_one(took),
        ), (loan, "block", block)

    return step


def give_back(loan: Loan, most: int) -> Step:
    """Free again, or on its way to the system if it has more than `most` bytes. Once a loan."""

    def step(tables: Tables) -> tuple[Tables, Effect] | None:
        block = loan.block
        if block is None or loan.back:
            return None
        at = bucket_of(block.size)
        bucket = tables.buckets[at]
        goes = block.size > most
        buckets = {**tables.buckets, at: _used(bucket, block, -1, bucket.free if goes else (*bucket.free, block))}
        leaving = (*tables.leaving, block) if goes else tables.leaving
        return tables._replace(buckets=buckets, leaving=leaving), (loan, "back", True)

    return step


def clear(tables: Tables) -> tuple[Tables, None] | None:
    """All free blocks are to be unpinned, those of the smallest bucket first."""
    free = tuple(block for at in sorted(tables.buckets) for block in tables.buckets[at].free)
    if not free:
        return None
    buckets = {at: bucket._replace(free=()) for at, bucket in tables.buckets.items()}
    return tables._replace(buckets=buckets, leaving=(*tables.leaving, *free)), None


def claim(block: HostBlock, who: object) -> Step:
    """Whose change this is may unpin it."""

    def step(tables: Tables) -> tuple[Tables, None] | None:
        try:
            at = tables.leaving.index(block)
        except ValueError:
            return None
        leaving = tables.leaving[:at] + tables.leaving[at + 1 :]
        return tables._replace(leaving=leaving, going=(*tables.going, (block, who))), None

    return step


def gone(block: HostBlock, who: object, took: int | None) -> Step:
    """The system has it; `took` is how long that did, in µs."""

    def step(tables: Tables) -> tuple[Tables, None] | None:
        if (block, who) not in tables.going:
            return None
        parts = tables.parts - block.reserved
        return tables._replace(
            going=tuple(each for each in tables.going if each != (block, who)),
            allocations=counted(tables.allocations, -1),
            nbytes=counted(tables.nbytes, -block.size),
            unpinning=tables.unpinning if took is None else tables.unpinning.and_one(took),
            parts=parts,
            used=tables.used if parts else 0,
        ), None

    return step


def stay(block: HostBlock, who: object) -> Step:
    """The system refused to take it: it is free again, and the last to be used."""

    def step(tables: Tables) -> tuple[Tables, None] | None:
        if (block, who) not in tables.going:
            return None
        bucket = tables.buckets[bucket_of(block.size)]
        buckets = {**tables.buckets, bucket_of(block.size): bucket._replace(free=(block, *bucket.free))}
        going = tuple(each for each in tables.going if each != (block, who))
        return tables._replace(buckets=buckets, going=going), None

    return step


def reserve(address: int, size: int, took: int | None) -> Step:
    """The reserved segment, or with size 0 that there will be none. The first answer counts."""

    def step(tables: Tables) -> tuple[Tables, None] | None:
        if tables.segment is not None:
            return None
        pinning = tables.pinning if took is None else tables.pinning.and_one(took)
        return tables._replace(segment=(address, size), pinning=pinning), None

    return step


def cut(size: int, loan: Loan) -> Step:
    """The next part of the reserved segment. What comes back of it is cached, and not cut again before all is back."""

    def step(tables: Tables) -> tuple[Tables, Effect | None] | None:
        address, room = tables.segment or (0, 0)
        used = tables.used + -(-size // _PART) * _PART
        if used > room:
            return None
        block = HostBlock(address + tables.used, size, reserved=True)
        return adopt(block, loan, None)(tables._replace(used=used, parts=tables.parts + 1))

    return step


def reset_peaks(tables: Tables) -> tuple[Tables, None]:
    return _each(tables, lambda count: (count[0], count[0], count[2], count[3]), lambda times: times.without_peaks())


def reset_sums(tables: Tables) -> tuple[Tables, None]:
    return _each(tables, lambda count: (count[0], count[1], 0, 0), lambda times: times.without_sums())


def _each(tables: Tables, count: Callable[[Count], Count], times: Callable[[Times], Times]) -> tuple[Tables, None]:
    buckets = {
        at: Bucket(bucket.free, count(bucket.requests), count(bucket.nbytes)) for at, bucket in tables.buckets.items()
    }
    return tables._replace(
        buckets=buckets,
        allocations=count(tables.allocations),
        nbytes=count(tables.nbytes),
        pinning=times(tables.pinning),
        unpinning=times(tables.unpinning),
    ), None
