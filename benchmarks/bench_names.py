"""Overhead of forebay.mps and forebay.mtia over the runtime calls that they wrap, on emulated devices.

Nanoseconds of processor time of the calling thread, in alternating runs. The runtime call is the public equivalent, if
there is one. Both times include a call of an empty Python function.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from timeit import Timer
from typing import Any, NamedTuple

from measure import in_turns, show, table

import forebay
from forebay import memory, mps, mtia, random
from forebay.runtime.devices.current import opened_for
from forebay.runtime.graphs.graph import Graph

_BOUND = 40  # nanoseconds
_TURNS = 61
_FEW, _MANY = 3_000, 4_000  # calls per turn: those that visit every queue, and others
_SEED, _SHARE = 7, 1.0

Call = Callable[[], Any]


class Row(NamedTuple):
    name: str
    face: Call
    runtime_name: str
    runtime: Call
    statement: str = "call()"
    rounds: int = _MANY


def nanoseconds(statement: str, call: Call, rounds: int) -> Callable[[], float]:
    """Return a timer with its own code object, which Python specialises for this call."""
    timer = Timer(statement, timer=time.thread_time_ns, globals={"call": call})
    timer.timeit(rounds)
    return lambda: timer.timeit(rounds) / rounds


def streams(face: Any, stream: forebay.Stream) -> list[Row]:
    return [
        Row("current_stream()", face.current_stream, "current_stream()", forebay.current_stream),
        Row("default_stream()", face.default_stream, "default_stream()", forebay.default_stream),
        Row("set_stream(s)", partial(face.set_stream, stream), "set_stream(s)", partial(forebay.set_stream, stream)),
        Row("with stream(s)", partial(face.stream, stream), "with s", lambda: stream, "with call(): pass"),
        Row("synchronize()", face.synchronize, "synchronize()", forebay.synchronize, rounds=_FEW),
    ]


def events(ours: Any) -> list[Row]:
    """Return the rows of an event that was recorded and reached."""
    theirs = forebay.Event()
    for event in (ours, theirs):
        event.record()
    names = ("record", "query", "synchronize")
    return [Row(f"Event.{name}()", getattr(ours, name), f"Event.{name}()", getattr(theirs, name)) for name in names]


def common(face: Any, kind: str, device: forebay.device) -> list[Row]:
    """Return the rows that MPS and MTIA share."""
    count, seed = partial(forebay.device_count, kind), partial(random.manual_seed, _SEED, device)
    return [
        Row("is_available()", face.is_available, "device_count(kind)", count),
        Row("device_count()", face.device_count, "device_count(kind)", count),
        Row("get_rng_state()", face.get_rng_state, "random.get_rng_state()", random.get_rng_state),
        Row("manual_seed(seed)", partial(face.manual_seed, _SEED), "random.manual_seed(seed, device)", seed),
        Row("empty_cache()", face.empty_cache, "memory.empty_cache()", memory.empty_cache, rounds=_FEW),
    ]


def mps_rows() -> list[Row]:
    allocated, share = memory.memory_allocated, memory.set_per_process_memory_fraction

    def driver_allocated() -> Any:
        return opened_for().allocator.driver_allocated()  # type: ignore[attr-defined]  # MPS devices have heaps

    def recommended() -> Any:
        return opened_for().port.props.heaps.recommended  # type: ignore[union-attr]  # MPS devices have heaps

    limited = partial(mps.set_per_process_memory_fraction, _SHARE)
    return [
        *common(mps, "mps", forebay.device("mps:0")),
        Row("current_allocated_memory()", mps.current_allocated_memory, "memory.memory_allocated()", allocated),
        Row("driver_allocated_memory()", mps.driver_allocated_memory, "allocator.driver_allocated()", driver_allocated),
        Row("recommended_max_memory()", mps.recommended_max_memory, "port.props.heaps", recommended),
        Row("set_per_process_memory_fraction(x)", limited, "the same of memory", partial(share, _SHARE)),
        *events(mps.Event()),
        *streams(mps, mps.Stream()),
    ]


def mtia_rows() -> list[Row]:
    peak, stats = memory.max_memory_allocated, memory.memory_stats
    return [
        *common(mtia, "mtia", forebay.device("mtia:0")),
        Row("memory_allocated()", mtia.memory_allocated, "memory.memory_allocated()", memory.memory_allocated),
        Row("max_memory_allocated()", mtia.max_memory_allocated, "memory.max_memory_allocated()", peak),
        Row("memory_stats()", mtia.memory_stats, "memory.memory_stats()", stats),
        Row("current_device()", mtia.current_device, "current_device()", forebay.current_device),
        Row("set_device(0)", partial(mtia.set_device, 0), "set_device(0)", partial(forebay.set_device, 0)),
        *events(mtia.Event()),
        *streams(mtia, mtia.Stream()),
        Row("MTIAGraph.replay()", captured(mtia.MTIAGraph()), "Graph.replay()", captured(Graph())),
    ]


def captured(graph: Graph) -> Call:
    """Capture a fill of 4 bytes and return the replay."""
    with mtia.stream(mtia.Stream()):
        graph.capture_begin((0, 0))
        forebay.zeros(1)
        graph.capture_end()
    return graph.replay


def measure(kind: str, rows: Callable[[], list[Row]]) -> None:
    result = table(
        f"forebay.{kind}: nanoseconds per call", "face", "runtime call", "face", "runtime", "difference", "bound"
    )
    with forebay.emulate(kind), forebay.use_device(f"{kind}:0"):
        for row in rows():
            sides = [nanoseconds(row.statement, call, row.rounds) for call in (row.face, row.runtime)]
            turns = in_turns(*sides, repetitions=_TURNS)
            forebay.synchronize()
            face, runtime = (median(turn) for turn in zip(*turns, strict=True))
            difference = median(face - runtime for face, runtime in turns)
            result.add_row(
                row.name, row.runtime_name, f"{face:,.0f}", f"{runtime:,.0f}", f"{difference:,.0f}", f"≤ {_BOUND}"
            )
    show(result)


def main() -> None:
    measure("mps", mps_rows)
    measure("mtia", mtia_rows)


if __name__ == "__main__":
    main()
