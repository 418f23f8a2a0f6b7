"""Metal's policy beside CUDA's on the same requests, in one process and in turns: both are rules over the one pool."""

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

_PAIR, _RATIO = 200, 1.3  # bounds: nanoseconds, and of CUDA's time
_TOTAL = 1 << 45


def heaps() -> HeapAllocator:
    return HeapAllocator("fake:0", FakePort(total=_TOTAL), Heaps(_TOTAL // 2, _TOTAL // 4), {})


def segments() -> SegmentAllocator:
    return SegmentAllocator("fake:0", FakePort(total=_TOTAL), {})


def pair(allocator: Allocator) -> Callable[[], float]:
    loop, _ = by_object(allocator.allocate)
    return lambda: timed(loop, 100_000, 1)


def churn(allocator: Allocator, streams: int) -> Callable[[], float]:
    """2,000 live blocks from bytes to 40 MiB, of which one at a time is replaced."""
    chance = random.Random(7)
    _, replace = by_object(allocator.allocate)
    blocks = [allocator.allocate(mixed(chance), chance.randrange(streams)) for _ in range(LIVE)]
    steps = [(chance.randrange(LIVE), mixed(chance), chance.randrange(streams)) for _ in range(STEPS)]
    for _ in range(3):  # until no new memory is needed
        replace(blocks, steps)
    return lambda: timed(lambda count: replace(blocks, steps[:count]), STEPS, 1)


def main() -> None:
    made = table("An allocation and its free: nanoseconds", "what", "heaps", "segments", "ratio", "bounds")
    programs: tuple[tuple[str, Callable[[Allocator], Callable[[], float]], str], ...] = (
        ("1 KiB, cached", pair, f"{_PAIR} ns, {_RATIO}"),
        (f"churn, {LIVE:,} live, 1 stream", lambda allocator: churn(allocator, 1), f"{_RATIO}"),
        (f"churn, {LIVE:,} live, 4 streams", lambda allocator: churn(allocator, 4), f"{_RATIO}"),
    )
    for name, program, bounds in programs:
        ours, cudas = map(median, zip(*in_turns(program(heaps()), program(segments())), strict=True))
        made.add_row(name, f"{ours:.0f}", f"{cudas:.0f}", f"{ours / cudas:.2f}", bounds)
    show(made)
    made = table("Churn as live blocks grow, sizes to 64 KiB: nanoseconds a pair", "live", "heaps", "segments", "ratio")
    found = [
        growth(allocator.allocate, by_object(allocator.allocate)[1], list.clear) for allocator in (heaps(), segments())
    ]
    for live in map(str, SIZES_OF_GROWTH):
        ours, cudas = (each[live] for each in found)
        made.add_row(f"{int(live):,}", f"{ours:.0f}", f"{cudas:.0f}", f"{ours / cudas:.2f}")
    show(made)


if __name__ == "__main__":
    main()
