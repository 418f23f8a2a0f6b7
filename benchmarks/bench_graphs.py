"""Graphs on the CPU device: capture, replay and launch, compared with the same work without a graph."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from statistics import median

from measure import REPETITIONS, show, table

import forebay
from forebay.runtime.graphs.graph import Graph

NODES = 1_000


def nanoseconds(work: Callable[[], object], rounds: int, wait: Callable[[], object]) -> tuple[float, float]:
    """Return the time of one round until its work is queued, and until the work has completed."""
    queued, completed = [], []
    for _ in range(REPETITIONS):
        start = time.perf_counter_ns()
        for _ in range(rounds):
            work()
        queued.append((time.perf_counter_ns() - start) / rounds)
        wait()
        completed.append((time.perf_counter_ns() - start) / rounds)
    return median(queued), median(completed)


def captured(work: Callable[[], object]) -> Graph:
    graph = Graph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for the empty graph
        graph.capture_begin()
        work()
        graph.capture_end()
    return graph


def main() -> None:
    stream = forebay.Stream("cpu")
    with stream:
        target, source = forebay.zeros(64), forebay.zeros(64)
        queue, target_address, source_address = stream.queue, target.data_ptr(), source.data_ptr()

        def copy_by_queue() -> None:
            for _ in range(NODES):
                queue.copy(target_address, source_address, 64)

        def copy_tensors() -> None:
            for _ in range(NODES):
                target.copy_(source)

        def draw() -> None:
            for _ in range(NODES):
                target.uniform_()

        def call() -> None:
            for _ in range(NODES):
                queue.call(int)  # type: ignore[attr-defined]  # queues of the CPU device have it

        result = table(
            f"A graph of {NODES} nodes, nanoseconds per node", "node", "eager", "captured", "replayed", "ratio"
        )
        for name, work in (
            ("copy of 64 bytes, by the queue", copy_by_queue),
            ("copy of 64 bytes, by tensors", copy_tensors),
            ("draw of 64 numbers", draw),
            ("call of a Python function", call),
        ):
            rounds = 20
            _, eager = nanoseconds(work, rounds, stream.synchronize)
            capture, _ = nanoseconds(lambda work=work: captured(work), rounds, stream.synchronize)  # type: ignore[misc]
            graph = captured(work)
            _, replay = nanoseconds(graph.replay, rounds, stream.synchronize)
            figures = [f"{figure / NODES:.0f}" for figure in (eager, capture, replay)]
            result.add_row(name, *figures, f"{eager / replay:.1f}")
        show(result)

        result = table("One launch", "of", "queued", "completed")
        for name, work in (
            ("an empty graph", lambda: None),
            ("one copy", lambda: queue.copy(target_address, source_address, 64)),
            ("one draw", target.uniform_),
        ):
            queued, completed = nanoseconds(captured(work).replay, 1_000, stream.synchronize)
            result.add_row(name, f"{queued:.0f} ns", f"{completed:.0f} ns")
        show(result)


if __name__ == "__main__":
    main()
