"""The same allocator programs for both: `allocator_programs.py penstock|pytorch` prints JSON, nanoseconds a pair.

PyTorch's is run by its own interpreter, so this file imports nothing of ours before it knows.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

LIVE, STEPS = 2_000, 20_000
Steps = list[tuple[int, int]]


def mixed(chance: random.Random) -> int:
    """From bytes to tens of MiB: two in five small, one in four large."""
    kind = chance.random()
    if kind < 0.4:
        return chance.randint(1, 8192)
    if kind < 0.7:
        return chance.randint(8192, 1 << 20)
    return chance.randint(1 << 20, 8 << 20) if kind < 0.95 else chance.randint(10 << 20, 40 << 20)


def timed(loop: Callable[[int], Any], count: int, repetitions: int = 7) -> float:
    loop(count)
    times = []
    for _ in range(repetitions):
        start = time.perf_counter_ns()
        loop(count)
        times.append((time.perf_counter_ns() - start) / count)
    return median(times)


def at_depth(frames: int, loop: Callable[[int], Any], count: int) -> Any:
    return at_depth(frames - 1, loop, count) if frames else loop(count)


def programs(
    pair: Callable[[int], Any],
    fill: Callable[[list[int]], Any],
    churn: Callable[[Any, Steps], Any],
    record: Callable[[], Any],
) -> dict[str, float]:
    chance = random.Random(7)
    found = {"pair": timed(pair, 200_000)}
    blocks = fill([mixed(chance) for _ in range(LIVE)])
    steps = [(chance.randrange(LIVE), mixed(chance)) for _ in range(STEPS)]
    for _ in range(3):  # until no new segment is needed
        churn(blocks, steps)
    found["churn"] = timed(lambda count: churn(blocks, steps[:count]), STEPS)
    blocks.clear()
    record()
    found["history"] = timed(lambda count: at_depth(17, pair, count), 100_000)
    return found


def penstock() -> dict[str, float]:
    from penstock.runtime.allocator import Allocator
    from penstock.testing.fake import FakePort

    allocator = Allocator("fake:0", FakePort(total=1 << 50), {})
    allocate = allocator.allocate

    def pair(count: int) -> None:
        for _ in range(count):
            allocate(1024)

    def churn(blocks: list[Any], steps: Steps) -> None:
        for at, nbytes in steps:
            blocks[at] = None
            blocks[at] = allocate(nbytes)

    return programs(pair, lambda sizes: [allocate(size) for size in sizes], churn, lambda: allocator.record(100_000))


def pytorch() -> dict[str, float]:
    import torch

    torch.cuda.init()
    allocate, delete = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete

    def pair(count: int) -> None:
        for _ in range(count):
            delete(allocate(1024, 0))

    def churn(blocks: list[Any], steps: Steps) -> None:
        for at, nbytes in steps:
            delete(blocks[at])
            blocks[at] = allocate(nbytes, 0)

    def record() -> None:
        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=100_000)

    return programs(pair, lambda sizes: [allocate(size, 0) for size in sizes], churn, record)


if __name__ == "__main__":
    print(json.dumps({"penstock": penstock, "pytorch": pytorch}[sys.argv[1]]()))
