"""Allocator statistics of forebay and of PyTorch after the same operations on the same GPU, compared key by key."""

from __future__ import annotations

import random
from typing import Any

import forebay
from gpu.part import Job, Outcome, compared_with, execute, optional_module

SEED = 16
STEPS, QUICK_STEPS = 2000, 200
STREAMS = 3
SIZES = (1, 500, 512, 5_000, 1 << 20, (1 << 20) + 1, 3 << 20, 9 << 20, 12 << 20, 31 << 20)  # around the policy's limits
MOST_LIVE = 40
SHOWN = 20  # differences
FREE, EMPTY, LOOK = 0.45, 0.02, 0.05  # chances of a free, of emptying the cache, and of a look at the statistics


def statistics(cuda: Any, steps: int) -> list[dict[str, Any]]:
    """Execute a program of allocations and frees on several streams, and return the statistics on the way."""
    rng = random.Random(SEED)  # noqa: S311 - the same program each time
    streams = [cuda.Stream() for _ in range(STREAMS)]
    cuda.init()
    cuda.empty_cache()
    live: list[int] = []
    memory, seen = cuda.memory, [dict(cuda.memory_stats())]
    for _ in range(steps):
        chance = rng.random()
        if live and (chance < FREE or len(live) == MOST_LIVE):
            memory.caching_allocator_delete(live.pop(rng.randrange(len(live))))
        elif chance > 1 - EMPTY:
            cuda.synchronize()
            cuda.empty_cache()
        elif chance > 1 - EMPTY - LOOK:
            seen.append(dict(cuda.memory_stats()))
        else:
            live.append(memory.caching_allocator_alloc(rng.choice(SIZES), 0, rng.choice(streams)))
    for address in live:
        memory.caching_allocator_delete(address)
    seen.append(dict(cuda.memory_stats()))
    cuda.synchronize()
    cuda.empty_cache()
    return [*seen, dict(cuda.memory_stats())]


def differences(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[str]:
    """Return a line for each value that differs, and for each key that one side lacks."""
    lines = []
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        for key in sorted({*one, *other}):
            if one.get(key) != other.get(key):
                values = f"forebay {one.get(key, 'none')}, PyTorch {other.get(key, 'none')}"
                lines.append(f"* look {number}, `{key}`: {values}")
    return lines


def compare(job: Job) -> Outcome:
    """Compare the statistics of both libraries."""
    torch = optional_module("torch", "PyTorch")
    steps = QUICK_STEPS if job.quick else STEPS
    ours, theirs = statistics(forebay.cuda, steps), statistics(torch.cuda, steps)
    wrong = differences(ours, theirs)
    detail = f"{steps:,} operations, {len(ours)} looks at {len(ours[0])} statistics"
    more = [f"* and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
    return Outcome(*compared_with(torch, wrong, detail), [*wrong[:SHOWN], *more])


if __name__ == "__main__":
    execute(compare)
