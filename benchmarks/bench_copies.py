"""Fills, conversions and strided copies of an emulated CUDA device: cost of queueing, speed, and memory in a loop.

A queue runs them in order, so the memory of a tensor that was dropped is free for the next one although its fill may
be pending: the peak of a loop that creates and drops tensors is one tensor, as on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
from measure import REPETITIONS, show, table

import forebay
from forebay import cuda

SMALL, LARGE = 64, 1 << 22  # elements
ROUNDS = 2_000
MIB = 1 << 20


def queued(call: Callable[[], object]) -> float:
    """Return the nanoseconds of processor time that the calling thread needs to queue a call."""
    times = []
    for _ in range(REPETITIONS):
        start = time.thread_time_ns()
        for _ in range(ROUNDS):
            call()
        times.append((time.thread_time_ns() - start) / ROUNDS)
        cuda.synchronize()
    return median(times)


def completed(call: Callable[[], object]) -> float:
    """Return the microseconds until a call has completed."""
    times = []
    for _ in range(20 * REPETITIONS):
        start = time.perf_counter_ns()
        call()
        cuda.synchronize()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return median(times)


def calls(count: int) -> dict[str, Callable[[], object]]:
    """Return the measured operations on tensors of `count` elements."""
    numbers, half = forebay.zeros(count, device="cuda"), forebay.zeros(count, device="cuda", dtype="float16")
    integers, table_ = forebay.zeros(count, device="cuda", dtype="int64"), forebay.zeros(2, count // 2, device="cuda")
    return {
        "fill_ of float32 with 0": numbers.zero_,
        "fill_ of float32 with 1.5": lambda: numbers.fill_(1.5),
        "fill_ of every second element": lambda: numbers[::2].fill_(1.5),
        "copy_ float32 to float16": lambda: half.copy_(numbers),
        "copy_ float16 to float32": lambda: numbers.copy_(half),
        "copy_ int64 to float32": lambda: numbers.copy_(integers),
        "copy_ to every second element": lambda: numbers[1::2].copy_(table_[0]),
        "copy_ of a transposed matrix": lambda: numbers.view(count // 2, 2).copy_(table_.transpose(0, 1)),
    }


def peaks() -> dict[str, Callable[[], object]]:
    """Return functions that create and drop a tensor of 4 MiB."""
    source = forebay.zeros(MIB // 2, device="cuda", dtype="float64").expand(2, -1)
    array, count = np.zeros(MIB, np.float32), (MIB,)
    return {
        "full": lambda: forebay.full(count, 1.0, device="cuda"),
        "empty and fill_": lambda: forebay.empty(count, device="cuda").fill_(1.5),
        "to(float32)": lambda: source.to("float32"),
        "empty and copy_ of float64": lambda: forebay.empty(2, MIB // 2, device="cuda").copy_(source),
        "empty and copy_ of an array, non_blocking": lambda: forebay.empty(count, device="cuda").copy_(array, True),
    }


def main() -> None:
    with forebay.emulate("cuda"):
        result = table("Fills and copies", "work", f"{SMALL} elements, queued, ns", f"{LARGE >> 20} Mi completed, µs")
        small, large = calls(SMALL), calls(LARGE)
        for name in small:
            result.add_row(name, f"{queued(small[name]):.0f}", f"{completed(large[name]):.0f}")
        show(result)

    with forebay.emulate("cuda"):
        result = table("50 tensors of 4 MiB, one after the other", "work", "peak allocated, MiB", "reserved, MiB")
        for name, call in peaks().items():
            cuda.synchronize()
            cuda.empty_cache()
            cuda.reset_peak_memory_stats()
            before = cuda.memory_allocated()
            for _ in range(50):
                call()
            figures = cuda.max_memory_allocated() - before, cuda.max_memory_reserved()
            result.add_row(name, *(f"{figure / MIB:.0f}" for figure in figures))
        show(result)


if __name__ == "__main__":
    main()
