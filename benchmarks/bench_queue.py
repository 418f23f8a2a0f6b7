"""The host queue: what enqueueing costs, and how long it takes to know that it is done, beside a busy Python thread."""

from __future__ import annotations

import threading
import time
from statistics import median, quantiles

import numpy as np
from measure import REPETITIONS, show, table

from penstock.backends import driver

ROUNDS = 5_000


def enqueue(queue: object) -> float:
    """Nanoseconds to queue a fill of one byte, the queue busy or not."""
    times = []
    target = bytearray(64)
    address = np.frombuffer(target, np.uint8).ctypes.data
    for _ in range(REPETITIONS):
        start = time.perf_counter_ns()
        for _ in range(ROUNDS):
            queue.fill(address, 0, 1)
        times.append((time.perf_counter_ns() - start) / ROUNDS)
        queue.wait(queue.signal())
    return median(times)


def round_trips(queue: object) -> list[float]:
    """Microseconds from a fill to having waited for it, one figure a trip."""
    target = np.zeros(64, np.uint8)
    address = target.ctypes.data
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        queue.fill(address, 0, 64)
        queue.wait(queue.signal())
        times.append((time.perf_counter_ns() - start) / 1000)
    return times


def beside_busy_python(queue: object) -> list[float]:
    stop = False

    def compute() -> None:
        while not stop:
            sum(range(1000))

    busy = threading.Thread(target=compute)
    busy.start()
    try:
        return round_trips(queue)
    finally:
        stop = True
        busy.join()


def main() -> None:
    port = driver("host").open(0)
    queue = port.queue()
    made = table("The host queue", "what", "median", "p90", "p99", "bound")
    made.add_row("enqueue a fill", f"{enqueue(queue):.0f} ns", "", "", "≤ 500 ns")
    round_trips(queue)
    for name, measure, bound in (
        ("fill, signal, wait", round_trips, ""),
        ("the same beside a busy Python thread", beside_busy_python, "≤ 10 µs"),
    ):
        medians, p90, p99 = [], [], []
        for _ in range(REPETITIONS):
            times = measure(queue)
            cuts = quantiles(times, n=100)
            medians.append(median(times))
            p90.append(cuts[89])
            p99.append(cuts[98])
        made.add_row(name, f"{median(medians):.1f} µs", f"{median(p90):.1f} µs", f"{median(p99):.1f} µs", bound)
    show(made)
    port.close()


if __name__ == "__main__":
    main()
