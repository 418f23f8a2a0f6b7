"""Traces: what an operation costs with one and without, and what it takes to write one.

Nanoseconds of processor time of the calling thread, medians of repetitions that take turns.
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


def nanoseconds(do: Callable[[], object]) -> float:
    """Of one round, until it is queued."""
    start = time.thread_time_ns()
    for _ in range(ROUNDS):
        do()
    spent = (time.thread_time_ns() - start) / ROUNDS
    forebay.synchronize("host:0")
    return spent


def traced(do: Callable[[], object]) -> float:
    recorder = Recorder(10 * ROUNDS)
    recorder.begin()
    try:
        return nanoseconds(do)
    finally:
        recorder.finish(limit=10)


def costs(operations: dict[str, Callable[[], object]]) -> None:
    made = table("Nanoseconds an operation", "operation", "off", "on", "more", "bound")
    without: dict[str, list[float]] = {name: [] for name in operations}
    with_one: dict[str, list[float]] = {name: [] for name in operations}
    for _ in range(REPETITIONS):
        for name, do in operations.items():
            without[name].append(nanoseconds(do))
            with_one[name].append(traced(do))
    for name in operations:
        off, on = median(without[name]), median(with_one[name])
        bound = "≤ 2,000" if name == SEVERAL else "≤ 1,000"
        made.add_row(name, f"{off:,.0f}", f"{on:,.0f}", f"{on - off:,.0f}", bound)
    show(made)


def writing(do: Callable[[], object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace = Trace(Path(folder) / "made.pftrace")
        trace.start()
        for _ in range(WRITTEN):
            do()
        forebay.synchronize("host:0")
        start = time.perf_counter()
        trace.stop()
        seconds = time.perf_counter() - start
        size = trace.path.stat().st_size
    made = table(f"Writing a trace of {WRITTEN:,} operations", "", "an operation")
    made.add_row("time", f"{seconds / WRITTEN * 1e6:.1f} µs")
    made.add_row("in the file", f"{size / WRITTEN:.0f} bytes")
    show(made)


def main() -> None:
    target, source, doubles = forebay.zeros(64), forebay.zeros(64), forebay.zeros(64, dtype=forebay.float64)
    side, here, event = forebay.Stream("host:0"), forebay.current_stream("host:0"), forebay.Event()

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
            "copy_ with a cast, by a function": lambda: target.copy_(doubles),
            "stream.wait_stream(other)": lambda: here.wait_stream(side),
            "event.record()": lambda: event.record(here),
            "event.wait()": lambda: event.wait(here),
            "event.query()": event.query,
            "event.synchronize()": event.synchronize,
            "stream.synchronize()": here.synchronize,
            SEVERAL: lambda: forebay.synchronize("host:0"),
            "read to the host": target.numpy,
            "graph.replay()": graph.replay,
            "allocate and free": lambda: forebay.empty(64),
            "a range": in_range,
        }
    )
    writing(lambda: target.fill_(0))


if __name__ == "__main__":
    main()
