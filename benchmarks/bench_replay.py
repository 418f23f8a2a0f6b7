"""Replay: events per second through the full allocator, and the time to read and verify a history.

`python benchmarks/bench_replay.py [SNAPSHOT …]` adds rows for recorded snapshots, repeated up to a million entries. An
event is an allocation or a free; a recording has three entries for two events.
"""

from __future__ import annotations

import io
import pickle
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from measure import show, table

from forebay import simulate
from forebay.records.model import ENTRY, Action, Snapshot
from forebay.snapshot import load
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.replay.engine import History, check

EVENTS, LIVE = 1_000_000, 2_000
REPETITIONS = 5
SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4")


def churn(events: int = EVENTS, live: int = LIVE, seed: int = 1) -> dict:
    """Return the snapshot, in PyTorch's schema, of a program that holds about `live` blocks, mostly small ones."""
    device, rng = simulate.Device(1 << 40), random.Random(seed)
    sizes = [int(2 ** rng.uniform(9, 25)) for _ in range(4096)]
    device.record_history(context=None)
    held: list[int] = []
    for step in range(events):
        if len(held) < live or (step % 2 and len(held) < live + 64):
            held.append(device.allocate(sizes[rng.randrange(4096)]))
        else:
            at = rng.randrange(len(held))
            held[at], held[-1] = held[-1], held[at]
            device.free(held.pop())
    return device.snapshot()


def repeated(snapshot: Snapshot, entries: int = EVENTS) -> Snapshot:
    """Repeat the history up to `entries`, with allocations and frees added so that it ends as it begins."""
    trace = snapshot.trace
    moves = trace[np.isin(trace["action"], (Action.ALLOC, Action.FREE_COMPLETED))]
    _, first = np.unique(moves["address"], return_index=True)
    _, last = np.unique(moves["address"][::-1], return_index=True)
    opened = moves[len(moves) - 1 - last]
    closing = opened[opened["action"] == Action.ALLOC].copy()
    closing["action"] = Action.FREE_COMPLETED
    opening = moves[first][moves[first]["action"] == Action.FREE_COMPLETED].copy()
    opening["action"] = Action.ALLOC
    cycle = np.concatenate([opening, moves, closing]).astype(ENTRY)
    return replace(snapshot, trace=np.tile(cycle, -(-entries // len(cycle))))


def seconds(history: History, settings: str) -> float:
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        outcome = history.run(settings)
        times.append(time.perf_counter() - start)
        assert outcome.complete
        assert not outcome.refused
    return median(times)


def recordings(paths: list[str]) -> Iterator[tuple[str, Snapshot]]:
    for path in paths:
        for snapshot in load(path):
            yield Path(path).stem, repeated(snapshot)


def main() -> None:
    recorded = churn()
    file = io.BytesIO()
    pickle.dump(recorded, file)
    start = time.perf_counter()
    (snapshot,) = torch_pickle.parse(file.getvalue())
    reading = time.perf_counter() - start
    start = time.perf_counter()
    found = check(snapshot)
    checking = time.perf_counter() - start
    assert found.equal, found

    speed = table(
        f"A history of {EVENTS:,} events with {LIVE:,} live blocks; millions of events per second",
        "history",
        *(text.replace(":", ":\n") or "defaults" for text in SETTINGS),
    )
    for name, history_snapshot in [("synthetic", snapshot), *recordings(sys.argv[1:])]:
        history = History(history_snapshot)
        speed.add_row(name, *(f"{history.events / seconds(history, text) / 1e6:.2f}" for text in SETTINGS))
    show(speed)
    steps = table(
        f"{len(snapshot.trace):,} entries of PyTorch's pickle, {len(file.getvalue()) >> 20} MiB", "step", "seconds"
    )
    steps.add_row("read", f"{reading:.2f}")
    steps.add_row(f"check ({found.placed:,} of {found.total:,} as recorded)", f"{checking:.2f}")
    start = time.perf_counter()
    History(snapshot)
    steps.add_row("prepare for replay", f"{time.perf_counter() - start:.2f}")
    show(steps)


if __name__ == "__main__":
    main()
