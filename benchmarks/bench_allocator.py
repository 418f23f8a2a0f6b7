"""Allocator: allocate and free, statistics, snapshots, many live blocks, threads; compared with PyTorch.

PyTorch's allocator runs over a stand-in CUDA runtime, if its oracle is set up (../shared/torch-oracle/setup.sh).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import beside_pytorch
from allocator_programs import LIVE, SIZES_OF_GROWTH, THREADS, calls, timed
from beside_pytorch import Row, ratio, shown
from measure import show, table

from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.testing.fake import FakePort

HERE = Path(__file__).parent
NATIVE = ("pool", "segments", "statistics", "expandable", "heaps", "free_list", "invariants")  # native/pool

PAIRS: tuple[Row, ...] = (
    ("allocate + free, 1 KiB: blocks | raw alloc", "pair", "pair", 4),
    ("blocks | caching_allocator_alloc", "pair", "pair, public", 12),
    ("forebay.allocate | caching_allocator_alloc", "pair, forebay.allocate", "pair, public", 12),
    ("simulate.Device, by address | caching_allocator_alloc", "pair by address", "pair, public", 12),
    (f"churn, {LIVE:,} live, 1 stream: blocks | raw", "churn 1", "churn 1", 3),
    (f"churn, {LIVE:,} live, 4 streams: blocks | raw", "churn 4", "churn 4", 3),
    ("the same, simulate.Device, by address | raw", "churn 4 by address", "churn 4", None),
    ("pair with history and 20-frame stacks: blocks | raw", "history", "history", None),
)
STATISTICS: tuple[Row, ...] = (
    ("memory_allocated()", "allocated", "allocated", 200),
    ("memory_stats()", "stats", "stats", 5),
    ("snapshot | _snapshot()", "columns", "snapshot", 5),
    ("snapshot in PyTorch's schema | _snapshot()", "snapshot", "snapshot", None),
    ("with 100,000 entries: snapshot | _snapshot()", "columns with history", "snapshot with history", None),
    ("with 100,000 entries, in PyTorch's schema", "snapshot with history", "snapshot with history", None),
)


both = partial(beside_pytorch.both, "allocator_programs")
rows = partial(beside_pytorch.rows, "allocator_programs")


def lower_bounds() -> None:
    allocator = SegmentAllocator("fake:0", FakePort(total=1 << 50), {})
    allocator.record_history(1000)
    allocator.record_history(0)

    def nothing(count: int) -> None:
        for _ in range(count):
            pass

    def empty(_: int) -> None: ...

    def call(function: Callable[[int], object]) -> Callable[[int], None]:
        def loop(count: int) -> None:
            for _ in range(count):
                function(1024)

        return loop

    row = {"address": 0, "size": 0, "requested_size": 0, "state": "", "frames": []}
    result = table("Lower bounds and calls: nanoseconds", "operation", "ns")
    operations: tuple[tuple[str, Callable[[int], object], int], ...] = (
        ("empty loop", nothing, 200_000),
        ("call of an empty Python function", call(empty), 200_000),
        ("allocator.allocate(1024) after a history was stopped", call(allocator.allocate), 200_000),
        ("2,209 copies of a dict of five keys", calls(lambda: [row.copy() for _ in range(2_209)]), 100),
    )
    for name, loop, count in operations:
        result.add_row(name, shown(timed(loop, count, 9)))
    show(result)


def growth() -> None:
    ours, theirs = both("growth", 1)
    result = table(
        "Churn by number of live blocks, sizes to 64 KiB: nanoseconds per pair",
        "live",
        "forebay",
        "PyTorch, raw",
        "ratio",
    )
    for live in map(str, SIZES_OF_GROWTH):
        result.add_row(f"{int(live):,}", shown(ours[live]), *ratio(ours[live], theirs.get(live)))
    show(result)


def threads() -> None:
    ours, theirs = both("threads", 1)
    native_rates = native_threads()
    result = table(
        "Million pairs per second of all threads together, on one device",
        "threads",
        "forebay",
        "PyTorch, raw",
        "native, own queues",
        "native, one queue",
    )
    for number in map(str, THREADS):
        rates = [ours[number], theirs.get(number), *native_rates.get(number, (None, None))]
        result.add_row(number, *("" if rate is None else f"{rate / 1e6:.1f}" for rate in rates))
    show(result)


def native_threads() -> dict[str, tuple[float, float]]:
    """Return the pairs per second of the pool without Python; {} if there is no compiler."""
    native = HERE.parent / "native"
    sources = [str(HERE / "native_threads.cpp"), *(str(native / "pool" / f"{name}.cpp") for name in NATIVE)]
    with tempfile.TemporaryDirectory() as folder:
        compiler = shlex.split(os.environ.get("CXX", "g++"))
        command = [*compiler, "-std=c++17", "-O3", "-pthread", f"-I{native}", *sources, "-o", f"{folder}/program"]
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            return {}
        done = subprocess.run([f"{folder}/program"], stdout=subprocess.PIPE, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {number: (float(own_queues), float(one_queue)) for number, own_queues, one_queue in lines}


if __name__ == "__main__":
    lower_bounds()
    rows("Nanoseconds per pair", "pairs", PAIRS)
    rows("2,209 blocks in 365 segments, nanoseconds per call", "statistics", STATISTICS)
    growth()
    threads()
