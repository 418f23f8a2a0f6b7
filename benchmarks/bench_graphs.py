"""Graphs on the host device: capturing, replaying and launching, against doing the same work eagerly."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from statistics import median

from measure import REPETITIONS, show, table

import forebay
from forebay.runtime.graphs.graph import Graph

NODES = 1_000


def nanoseconds(do: Callable[[], object], rounds: int, wait: Callable[[], object]) -> tuple[float, float]:
    """Of one round: until it is queued, and until it is done."""
    queued, done = [], []
    for _ in range(REPETITIONS):
        start = time.perf_counter_ns()
        for _ in range(rounds):
            do()
        queued.append((time.perf_counter_ns() - start) / rounds)
        wait()
        done.append((time.perf_counter_ns() - start) / rounds)
    return median(queued), median(done)


def captured(work: Callable[[], object]) -> Graph:
    graph = Graph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one is empty
        graph.capture_begin()
        work()
        graph.capture_end()
    return graph


def main() -> None:
    stream = forebay.Stream("host:0")
    with stream:
        target, source = forebay.zeros(64), forebay.zeros(64)
        queue, to, from_ = stream.queue, target.data_ptr(), source.data_ptr()

        def by_queue() -> None:
            for _ in range(NODES):
                queue.copy(to, from_, 64)

        def by_tensors() -> None:
            for _ in range(NODES):
                target.copy_(source)

        def drawing() -> None:
            for _ in range(NODES):
                target.uniform_()

        def calling() -> None:
            for _ in range(NODES):
                queue.call(int)  # type: ignore[attr-defined]  # the host's does

        made = table(f"A graph of {NODES} nodes, nanoseconds a node", "each", "eager", "captured", "replayed", "ratio")
        for name, work in (
            ("copies 64 bytes, by the queue", by_queue),
            ("copies 64 bytes, by tensors", by_tensors),
            ("draws 64 numbers", drawing),
            ("calls a Python function", calling),
        ):
            rounds = 20
            _, eager = nanoseconds(work, rounds, stream.synchronize)
            capture, _ = nanoseconds(lambda work=work: captured(work), rounds, stream.synchronize)  # type: ignore[misc]
            graph = captured(work)
            _, replay = nanoseconds(graph.replay, rounds, stream.synchronize)
            figures = [f"{figure / NODES:.0f}" for figure in (eager, capture, replay)]
            made.add_row(name, *figures, f"{eager / replay:.1f}")
        show(made)

        made = table("One launch", "of", "queued", "done")
        for name, work in (
            ("an empty graph", lambda: None),
            ("one copy", lambda: queue.copy(to, from_, 64)),
            ("one draw", target.uniform_),
        ):
            queued, done = nanoseconds(captured(work).replay, 1_000, stream.synchronize)
            made.add_row(name, f"{queued:.0f} ns", f"{done:.0f} ns")
        show(made)


if __name__ == "__main__":
    main()
