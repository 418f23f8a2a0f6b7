"""Traces: the cost of operations with and without a running trace, and the cost of writing the file.

Nanoseconds of processor time of the calling thread, medians of alternating repetitions.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from measure import show, table

import forebay
from forebay.observe import Trace
from forebay.observe.ranges import ranges
from forebay.observe.tracing.recorder import Recorder
from forebay.runtime.graphs.graph import Graph

REPETITIONS = 7
ROUNDS = 2_000
WRITTEN = 50_000
SEVERAL = "synchronize(): two waits"


def nanoseconds(operation: Callable[[], object]) -> float:
    """Return the time until one operation is queued."""
    start = time.thread_time_ns()
    for _ in range(ROUNDS):
        operation()
    spent = (time.thread_time_ns() - start) / ROUNDS
    forebay.synchronize("cpu")
    return spent


def traced(operation: Callable[[], object]) -> float:
    recorder = Recorder(10 * ROUNDS)
    recorder.begin()
    try:
        return nanoseconds(operation)
    finally:
        recorder.finish(limit=10)


def costs(operations: dict[str, Callable[[], object]]) -> None:
    result = table("Nanoseconds per operation", "operation", "off", "on", "difference", "bound")
    without: dict[str, list[float]] = {name: [] for name in operations}
    with_trace: dict[str, list[float]] = {name: [] for name in operations}
    for _ in range(REPETITIONS):
        for name, operation in operations.items():
            without[name].append(nanoseconds(operation))
            with_trace[name].append(traced(operation))
    for name in operations:
        off, on = median(without[name]), median(with_trace[name])
        bound = "≤ 2,000" if name == SEVERAL else "≤ 1,000"
        result.add_row(name, f"{off:,.0f}", f"{on:,.0f}", f"{on - off:,.0f}", bound)
    show(result)


def write(operation: Callable[[], object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace = Trace(Path(folder) / "made.pftrace")
        trace.start()
        for _ in range(WRITTEN):
            operation()
        forebay.synchronize("cpu")
        start = time.perf_counter()
        trace.stop()
        seconds = time.perf_counter() - start
        size = trace.path.stat().st_size
    result = table(f"Writing a trace of {WRITTEN:,} operations", "", "per operation")
    result.add_row("time", f"{seconds / WRITTEN * 1e6:.1f} µs")
    result.add_row("file size", f"{size / WRITTEN:.0f} bytes")
    show(result)


def main() -> None:
    target, source, doubles = forebay.zeros(64), forebay.zeros(64), forebay.zeros(64, dtype=forebay.float64)
    side, current, event = forebay.Stream("cpu"), forebay.current_stream("cpu"), forebay.Event()

    def in_range() -> None:
        ranges.push("range")
        ranges.pop()

    graph = Graph()
    with side:
        graph.capture_begin()
        target.fill_(0)
        graph.capture_end()

    costs(
        {
            "fill_": lambda: target.fill_(0),
            "copy_": lambda: target.copy_(source),
            "uniform_": target.uniform_,
            "copy_ with conversion (a host function)": lambda: target.copy_(doubles),
            "stream.wait_stream(other)": lambda: current.wait_stream(side),
            "event.record()": lambda: event.record(current),
            "event.wait()": lambda: event.wait(current),
            "event.query()": event.query,
            "event.synchronize()": event.synchronize,
            "stream.synchronize()": current.synchronize,
            SEVERAL: lambda: forebay.synchronize("cpu"),
            "read to the host": target.numpy,
            "graph.replay()": graph.replay,
            "allocate and free": lambda: forebay.empty(64),
            "range": in_range,
        }
    )
    write(lambda: target.fill_(0))


if __name__ == "__main__":
    main()
