"""Allocate and free through the Python face: a cached size, churn, with history, growth with the number of live blocks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from statistics import median

import penstock
from measure import REPETITIONS, nanoseconds, show, table
from penstock.runtime.allocator import Allocator
from penstock.testing.fake import FakePort

SIZES = (512, 1024, 4096, 65_536, 300_000, 2_000_000, 12_000_000)


def allocator() -> Allocator:
    return Allocator("fake:0", FakePort(total=1 << 50), {})


def pair(allocate: Callable[[int], object]) -> Callable[[int], None]:
    def loop(count: int) -> None:
        for _ in range(count):
            allocate(1024)

    return loop


def churn(live: int, count: int) -> float:
    """Nanoseconds a pair: one of `live` blocks of mixed sizes goes, another comes."""
    source, chance = allocator(), random.Random(1)
    blocks: list[object] = [source.allocate(chance.choice(SIZES)) for _ in range(live)]
    times = []
    for _ in range(REPETITIONS):
        steps = [(chance.randrange(live), chance.choice(SIZES)) for _ in range(count)]
        start = time.perf_counter_ns()
        for at, nbytes in steps:
            blocks[at] = None
            blocks[at] = source.allocate(nbytes)
        times.append((time.perf_counter_ns() - start) / count)
    assert source.broken() is None
    return median(times)


def at_depth(frames: int, loop: Callable[[int], None], count: int) -> None:
    if frames:
        at_depth(frames - 1, loop, count)
    else:
        loop(count)


def main() -> None:
    def nothing(count: int) -> None:
        for _ in range(count):
            pass

    def function(_: int) -> None: ...

    plain, recording = allocator(), allocator()
    recording.record(1_000_000)
    stopped = allocator()
    stopped.record(1000)
    stopped.record(0)
    made = table("Allocate and free, nanoseconds a pair", "what", "ns", "bound")
    made.add_row("floor: an empty loop", f"{nanoseconds(nothing, 1_000_000):.0f}", "")
    made.add_row("floor: calling an empty Python function", f"{nanoseconds(pair(function), 1_000_000):.0f}", "")
    made.add_row("allocator.allocate(1024), cached", f"{nanoseconds(pair(plain.allocate), 500_000):.0f}", "≤ 130")
    made.add_row("the same, history was on and is off again", f"{nanoseconds(pair(stopped.allocate), 500_000):.0f}", "≤ 130")
    made.add_row("penstock.allocate(1024), cached", f"{nanoseconds(pair(penstock.allocate), 200_000):.0f}", "")
    made.add_row("churn, 2,000 live blocks of mixed sizes", f"{churn(2_000, 100_000):.0f}", "≤ 350")
    deep = nanoseconds(lambda count: at_depth(17, pair(recording.allocate), count), 200_000)
    made.add_row("cached, with history and 20-frame stacks", f"{deep:.0f}", "≤ 500")
    show(made)

    growth = table("Churn as live blocks grow", "live blocks", "ns a pair")
    for live in (100, 1_000, 10_000, 100_000, 1_000_000):
        growth.add_row(f"{live:,}", f"{churn(live, 50_000):.0f}")
    show(growth)


if __name__ == "__main__":
    main()
