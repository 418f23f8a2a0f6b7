"""The host queue: what enqueueing costs, how long it takes to know that work is done, and how fast it copies.

`taskset -c 0 python benchmarks/bench_queue.py` shows the same with one core for the queue and the waiter.
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
    """Nanoseconds to queue a fill of one byte while the queue works the others off."""
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter_ns()
        for _ in range(ROUNDS):
            queue.fill(target, 0, 1)
        times.append((time.perf_counter_ns() - start) / ROUNDS)
        queue.wait(queue.signal())
    return median(times)


def emulated() -> Table:
    """Copies of 4 KiB on three queues that take turns: the host's, an emulated device's, and that within a guard."""
    drivers = {
        "the host device": driver("host"),
        "an emulated device": EmulatedDriver("cuda", 1, "h200"),
        "the same, guarded": EmulatedDriver("cuda", 1, "h200", guard=True),
    }
    made = table("Copies of 4 KiB", "queue of", "enqueue, ns", "to the host's", "round trip, µs")
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
    first = median(costs["the host device"])
    for name, cost in costs.items():
        made.add_row(name, f"{median(cost):.0f}", f"{median(cost) / first:.2f}", f"{median(trips[name]):.1f}")
    for port in ports.values():
        port.close()
    return made


def round_trips(queue: Queue, target: int, rounds: int = ROUNDS, pause: float = 0) -> list[float]:
    """Microseconds from queueing a fill to having waited for it, one figure a trip."""
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


def gigabytes_a_second(copy: Callable[[], object]) -> float:
    copy()
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        copy()
        times.append(time.perf_counter() - start)
    return COPIED / median(times) / 1e9


def main() -> None:
    port = driver("host").open(0)
    queue = port.queue()
    small = np.zeros(64, np.uint8)
    target = small.ctypes.data
    made = table("The host queue", "what", "median", "p90", "p99", "bound")
    made.add_row("enqueue a fill", f"{enqueue(queue, target):.0f} ns", "", "", "≤ 500 ns")
    for name, measure, bound in (
        ("fill, signal, wait", round_trips, ""),
        ("the same beside a busy Python thread", beside_busy_python, "≤ 10 µs"),
        ("the same after 1 ms of nothing to do", after_a_sleep, ""),
    ):
        runs = [measure(queue, target) for _ in range(REPETITIONS)]
        cuts = [quantiles(times, n=100) for times in runs]
        figures = (median(map(median, runs)), median(cut[89] for cut in cuts), median(cut[98] for cut in cuts))
        made.add_row(name, *(f"{figure:.1f} µs" for figure in figures), bound)
    show(made)

    source, copied = np.ones(COPIED, np.uint8), np.ones(COPIED, np.uint8)

    def by_queue() -> None:
        queue.copy(copied.ctypes.data, source.ctypes.data, COPIED)
        queue.wait(queue.signal())

    made = table("Copying 256 MiB", "by", "GB/s")
    made.add_row("numpy.copyto, the floor", f"{gigabytes_a_second(lambda: np.copyto(copied, source)):.1f}")
    made.add_row("the host queue", f"{gigabytes_a_second(by_queue):.1f}")
    show(made)
    show(emulated())
    port.close()


if __name__ == "__main__":
    main()
