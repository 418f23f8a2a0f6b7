"""Allocator programs for forebay and PyTorch: `allocator_programs.py forebay|pytorch GROUP` prints JSON.

Values are nanoseconds of the thread's processor time, or pairs per second of wall time for the group of threads. This
file imports forebay late, as PyTorch's side runs in another interpreter.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

LIVE, STEPS = 2_000, 20_000
SIZES_OF_GROWTH = (100, 1_000, 10_000, 100_000, 1_000_000)
THREADS = (1, 2, 4, 8)
Request = tuple[int, int]  # bytes, stream
Steps = list[tuple[int, int, int]]  # index of the block to replace, bytes, stream
Pair = Callable[[int], Any]
Churn = Callable[[list[Any], Steps], Any]
Allocate = Callable[..., Any]


def mixed(rng: random.Random) -> int:
    """Draw a size between 1 byte and 40 MiB: 40 % up to 8 KiB, 30 % up to 1 MiB, 30 % larger."""
    kind = rng.random()
    if kind < 0.4:
        return rng.randint(1, 8192)
    if kind < 0.7:
        return rng.randint(8192, 1 << 20)
    return rng.randint(1 << 20, 8 << 20) if kind < 0.95 else rng.randint(10 << 20, 40 << 20)


def timed(loop: Callable[[int], Any], count: int, repetitions: int = 7) -> float:
    loop(count)
    times = []
    for _ in range(repetitions):
        start = time.thread_time_ns()
        loop(count)
        times.append((time.thread_time_ns() - start) / count)
    return median(times)


def calls(function: Callable[[], Any]) -> Callable[[int], None]:
    def loop(count: int) -> None:
        for _ in range(count):
            function()

    return loop


def at_depth(frames: int, loop: Callable[[int], Any], count: int) -> Any:
    return at_depth(frames - 1, loop, count) if frames else loop(count)


def by_object(allocate: Allocate) -> tuple[Pair, Churn]:
    """Return loops that free a block by deleting its object."""

    def pair(count: int) -> None:
        for _ in range(count):
            allocate(1024)

    def churn(blocks: list[Any], steps: Steps) -> None:
        for at, nbytes, stream in steps:
            blocks[at] = None
            blocks[at] = allocate(nbytes, stream)

    return pair, churn


def by_address(allocate: Allocate, free: Callable[[int], Any]) -> tuple[Pair, Churn]:
    """Return loops that free a block by its address."""

    def pair(count: int) -> None:
        for _ in range(count):
            free(allocate(1024, 0))

    def churn(blocks: list[Any], steps: Steps) -> None:
        for at, nbytes, stream in steps:
            free(blocks[at])
            blocks[at] = allocate(nbytes, stream)

    return pair, churn


def timed_churn(allocate: Allocate, churn: Churn, streams: list[int]) -> tuple[float, list[Any]]:
    rng = random.Random(7)
    blocks = [allocate(mixed(rng), rng.choice(streams)) for _ in range(LIVE)]
    steps = [(rng.randrange(LIVE), mixed(rng), rng.choice(streams)) for _ in range(STEPS)]
    for _ in range(3):  # warm-up, until no new segment is needed
        churn(blocks, steps)
    return timed(lambda count: churn(blocks, steps[:count]), STEPS), blocks


def growth(allocate: Allocate, churn: Churn, end: Callable[[list[Any]], Any]) -> dict[str, float]:
    results = {}
    for live in SIZES_OF_GROWTH:
        rng = random.Random(1)
        blocks = [allocate(rng.randint(1, 65_536), 0) for _ in range(live)]
        times = []
        for _ in range(7):
            steps = [(rng.randrange(live), rng.randint(1, 65_536), 0) for _ in range(50_000)]
            start = time.thread_time_ns()
            churn(blocks, steps)
            times.append((time.thread_time_ns() - start) / len(steps))
        results[str(live)] = median(times)
        end(blocks)
    return results


def threads(pair: Pair, pairs: int) -> dict[str, float]:
    """Return the pairs per second of all threads together, by the number of threads, in wall time."""
    results = {}
    for number in THREADS:
        rates = []
        for _ in range(7):
            group = [threading.Thread(target=pair, args=(pairs // number,)) for _ in range(number)]
            start = time.perf_counter()
            for thread in group:
                thread.start()
            for thread in group:
                thread.join()
            rates.append(pairs / (time.perf_counter() - start))
        results[str(number)] = median(rates)
    return results


def allocate_and_replace_thirds(allocate: Allocate, free: Callable[[int], Any], streams: list[int]) -> list[Any]:
    """Allocate 2,000 blocks on four streams and replace every third: 2,209 blocks in 365 segments."""
    rng = random.Random(7)
    requests: list[Request] = [(mixed(rng), rng.choice(streams)) for _ in range(LIVE)]
    blocks = [allocate(*request) for request in requests]
    for at in range(0, LIVE, 3):
        free(blocks[at])
    for at in range(0, LIVE, 3):
        blocks[at] = allocate(*requests[at])
    return blocks


def forebay(group: str) -> dict[str, Any]:
    import forebay
    from forebay.simulate import Device

    device = Device(1 << 45)
    allocate, free = device.allocate, device.free
    object_pair, object_churn = by_object(device.allocator.allocate)
    address_pair, address_churn = by_address(allocate, free)
    if group == "pairs":
        results = {"pair": timed(object_pair, 200_000), "pair by address": timed(address_pair, 200_000)}
        results["pair, forebay.allocate"] = timed(by_object(forebay.allocate)[0], 200_000)
        for number in (1, 4):
            streams = list(range(number))
            results[f"churn {number}"], blocks = timed_churn(device.allocator.allocate, object_churn, streams)
            blocks.clear()
            results[f"churn {number} by address"], blocks = timed_churn(allocate, address_churn, streams)
            for block in blocks:
                free(block)
        device.record_history("all", "alloc", "python", 100_000)
        results["history"] = timed(lambda count: at_depth(17, object_pair, count), 100_000)
        return results
    if group == "statistics":
        return forebay_statistics(device)
    if group == "growth":
        return growth(device.allocator.allocate, object_churn, list.clear)
    return threads(object_pair, 2_000_000)


def forebay_statistics(device: Any) -> dict[str, Any]:
    import forebay
    from forebay.runtime.allocator import statistics
    from forebay.runtime.history import memory_snapshot

    allocate, free = device.allocate, device.free
    kept = allocate_and_replace_thirds(allocate, free, [0, 1, 2, 3])
    segments = device.snapshot()["segments"]

    def columns() -> object:
        allocator = device.allocator
        return memory_snapshot.snapshot(allocator, "simulated", 1 << 45, stats=statistics.flat_stats(allocator))

    results: dict[str, Any] = {
        "blocks": sum(len(segment["blocks"]) for segment in segments),
        "allocated": timed(calls(forebay.memory.memory_allocated), 100_000),
        "stats": timed(calls(device.stats), 5_000),
        "snapshot": timed(calls(device.snapshot), 30),
        "columns": timed(calls(columns), 300),
    }
    device.record_history("all", "alloc", "python", 100_000)
    by_address(allocate, free)[0](40_000)
    results["snapshot with history"] = timed(calls(device.snapshot), 1)
    results["columns with history"] = timed(calls(columns), 10)
    assert len(kept) == LIVE
    return results


def pytorch(group: str) -> dict[str, Any]:
    import torch

    torch.cuda.init()
    allocate, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    raw_pair, raw_churn = by_address(allocate, free)
    memory, side_streams = torch.cuda.memory, [torch.cuda.Stream() for _ in range(3)]
    streams = [0, *(stream.cuda_stream for stream in side_streams)]

    def record() -> None:
        memory._record_memory_history("all", context="alloc", stacks="python", max_entries=100_000)

    def end(blocks: list[Any]) -> None:
        for block in blocks:
            free(block)

    if group == "pairs":
        cached, delete = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete

        def public_pair(count: int) -> None:
            for _ in range(count):
                delete(cached(1024))

        results = {"pair": timed(raw_pair, 200_000), "pair, public": timed(public_pair, 20_000)}
        for number in (1, 4):
            results[f"churn {number}"], blocks = timed_churn(allocate, raw_churn, streams[:number])
            end(blocks)
        record()
        results["history"] = timed(lambda count: at_depth(17, raw_pair, count), 100_000)
        return results
    if group == "statistics":
        blocks = allocate_and_replace_thirds(allocate, free, streams)
        results = {
            "blocks": sum(len(segment["blocks"]) for segment in memory._snapshot()["segments"]),
            "allocated": timed(calls(memory.memory_allocated), 2_000),
            "stats": timed(calls(memory.memory_stats), 2_000),
            "snapshot": timed(calls(memory._snapshot), 30),
        }
        record()
        raw_pair(40_000)
        results["snapshot with history"] = timed(calls(memory._snapshot), 1)
        return results
    if group == "growth":
        return growth(allocate, raw_churn, end)
    return threads(raw_pair, 400_000)


if __name__ == "__main__":
    print(json.dumps({"forebay": forebay, "pytorch": pytorch}[sys.argv[1]](sys.argv[2])))
