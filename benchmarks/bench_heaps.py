"""Heap allocator (Metal) compared with segment allocator (CUDA) on the same requests, in alternating runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median

from allocator_programs import LIVE, SIZES_OF_GROWTH, STEPS, by_object, growth, mixed, timed
from measure import in_turns, show, table

from forebay.runtime.allocator.caching_allocator import Allocator
from forebay.runtime.allocator.heap_allocator import HeapAllocator
from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.spi import Heaps
from forebay.testing.fake import FakePort

_PAIR, _RATIO = 200, 1.3  # bounds: nanoseconds, and the ratio to the segment allocator
_TOTAL = 1 << 45


def heaps() -> HeapAllocator:
    return HeapAllocator("fake:0", FakePort(total=_TOTAL), Heaps(_TOTAL // 2, _TOTAL // 4), {})


def segments() -> SegmentAllocator:
    return SegmentAllocator("fake:0", FakePort(total=_TOTAL), {})


def pair(allocator: Allocator) -> Callable[[], float]:
    loop, _ = by_object(allocator.allocate)
    return lambda: timed(loop, 100_000, 1)


def churn(allocator: Allocator, streams: int) -> Callable[[], float]:
    """Replace blocks, one at a time, among 2,000 live ones of 1 byte to 40 MiB."""
    rng = random.Random(7)
    _, replace = by_object(allocator.allocate)
    blocks = [allocator.allocate(mixed(rng), rng.randrange(streams)) for _ in range(LIVE)]
    steps = [(rng.randrange(LIVE), mixed(rng), rng.randrange(streams)) for _ in range(STEPS)]
    for _ in range(3):  # warm-up, until no new memory is needed
        replace(blocks, steps)
    return lambda: timed(lambda count: replace(blocks, steps[:count]), STEPS, 1)


def main() -> None:
    result = table("Allocate and free: nanoseconds per pair", "workload", "heaps", "segments", "ratio", "bounds")
    programs: tuple[tuple[str, Callable[[Allocator], Callable[[], float]], str], ...] = (
        ("1 KiB, cached", pair, f"{_PAIR} ns, {_RATIO}"),
        (f"churn, {LIVE:,} live, 1 stream", lambda allocator: churn(allocator, 1), f"{_RATIO}"),
        (f"churn, {LIVE:,} live, 4 streams", lambda allocator: churn(allocator, 4), f"{_RATIO}"),
    )
    for name, program, bounds in programs:
        heap_time, segment_time = map(median, zip(*in_turns(program(heaps()), program(segments())), strict=True))
        result.add_row(name, f"{heap_time:.0f}", f"{segment_time:.0f}", f"{heap_time / segment_time:.2f}", bounds)
    show(result)
    result = table(
        "Churn by number of live blocks, sizes to 64 KiB: nanoseconds per pair", "live", "heaps", "segments", "ratio"
    )
    found = [
        growth(allocator.allocate, by_object(allocator.allocate)[1], list.clear) for allocator in (heaps(), segments())
    ]
    for live in map(str, SIZES_OF_GROWTH):
        heap_time, segment_time = (each[live] for each in found)
        result.add_row(f"{int(live):,}", f"{heap_time:.0f}", f"{segment_time:.0f}", f"{heap_time / segment_time:.2f}")
    show(result)


if __name__ == "__main__":
    main()
