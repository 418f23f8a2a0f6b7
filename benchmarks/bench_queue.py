"""Queue of the CPU device: cost of enqueueing, latency of round trips, speed of copies.

`taskset -c 0 python benchmarks/bench_queue.py` measures with one core for the queue and the waiting thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from statistics import median, quantiles

import numpy as np
from measure import show, table
from rich.table import Table

from forebay.backends import driver
from forebay.backends.emulated.driver import EmulatedDriver
from forebay.spi import Queue

REPETITIONS = 9
ROUNDS = 5_000
COPIED = 256 << 20


def enqueue(queue: Queue, target: int) -> float:
    """Return the nanoseconds to queue a fill of one byte while the queue runs earlier fills."""
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter_ns()
        for _ in range(ROUNDS):
            queue.fill(target, 0, 1)
        times.append((time.perf_counter_ns() - start) / ROUNDS)
        queue.wait(queue.signal())
    return median(times)


def emulated() -> Table:
    """Measure copies of 4 KiB on alternating queues: CPU device, emulated device, guarded emulated device."""
    drivers = {
        "the CPU device": driver("cpu"),
        "an emulated device": EmulatedDriver("cuda", 1, "h200"),
        "the same, guarded": EmulatedDriver("cuda", 1, "h200", guard=True),
    }
    result = table("Copies of 4 KiB", "queue of", "enqueue, ns", "ratio to CPU", "round trip, µs")
    ports = {name: each.open(0) for name, each in drivers.items()}
    queues = {name: (port.queue(), port.reserve(20 << 20)) for name, port in ports.items()}
    costs: dict[str, list[float]] = {name: [] for name in queues}
    trips: dict[str, list[float]] = {name: [] for name in queues}
    for _ in range(REPETITIONS):
        for name, (queue, memory) in queues.items():
            start = time.perf_counter_ns()
            for _ in range(ROUNDS):
                queue.copy(memory, memory + 8192, 4096)
            costs[name].append((time.perf_counter_ns() - start) / ROUNDS)
            queue.wait(queue.signal())
            for _ in range(ROUNDS // 5):
                start = time.perf_counter_ns()
                queue.copy(memory, memory + 8192, 4096)
                queue.wait(queue.signal())
                trips[name].append((time.perf_counter_ns() - start) / 1000)
    first = median(costs["the CPU device"])
    for name, cost in costs.items():
        result.add_row(name, f"{median(cost):.0f}", f"{median(cost) / first:.2f}", f"{median(trips[name]):.1f}")
    for port in ports.values():
        port.close()
    return result


def round_trips(queue: Queue, target: int, rounds: int = ROUNDS, pause: float = 0) -> list[float]:
    """Return the microseconds of each round trip: queue a fill and wait for it."""
    times = []
    for _ in range(rounds):
        if pause:
            time.sleep(pause)
        start = time.perf_counter_ns()
        queue.fill(target, 0, 64)
        queue.wait(queue.signal())
        times.append((time.perf_counter_ns() - start) / 1000)
    return times


def after_a_sleep(queue: Queue, target: int) -> list[float]:
    return round_trips(queue, target, 200, 0.001)


def beside_busy_python(queue: Queue, target: int) -> list[float]:
    stop = False

    def compute() -> None:
        while not stop:
            sum(range(1000))

    busy = threading.Thread(target=compute)
    busy.start()
    try:
        return round_trips(queue, target)
    finally:
        stop = True
        busy.join()


def gigabytes_per_second(copy: Callable[[], object]) -> float:
    copy()
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        copy()
        times.append(time.perf_counter() - start)
    return COPIED / median(times) / 1e9


def main() -> None:
    port = driver("cpu").open(0)
    queue = port.queue()
    small = np.zeros(64, np.uint8)
    target = small.ctypes.data
    result = table("Queue of the CPU device", "operation", "median", "p90", "p99", "bound")
    result.add_row("enqueue a fill", f"{enqueue(queue, target):.0f} ns", "", "", "≤ 500 ns")
    for name, measure, bound in (
        ("fill, signal, wait", round_trips, ""),
        ("the same beside a busy Python thread", beside_busy_python, "≤ 10 µs"),
        ("the same after 1 ms of idling", after_a_sleep, ""),
    ):
        runs = [measure(queue, target) for _ in range(REPETITIONS)]
        cuts = [quantiles(times, n=100) for times in runs]
        figures = (median(map(median, runs)), median(cut[89] for cut in cuts), median(cut[98] for cut in cuts))
        result.add_row(name, *(f"{figure:.1f} µs" for figure in figures), bound)
    show(result)

    source, target_array = np.ones(COPIED, np.uint8), np.ones(COPIED, np.uint8)

    def copy_by_queue() -> None:
        queue.copy(target_array.ctypes.data, source.ctypes.data, COPIED)
        queue.wait(queue.signal())

    result = table("Copying 256 MiB", "by", "GB/s")
    result.add_row(
        "numpy.copyto, the lower bound", f"{gigabytes_per_second(lambda: np.copyto(target_array, source)):.1f}"
    )
    result.add_row("the queue", f"{gigabytes_per_second(copy_by_queue):.1f}")
    show(result)
    show(emulated())
    port.close()


if __name__ == "__main__":
    main()
