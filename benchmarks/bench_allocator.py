"""Allocate and free through the Python face: cached, in churn, with history; beside PyTorch's own, and how it grows.

PyTorch runs where its oracle is set up (../shared/torch-oracle/setup.sh): the real allocator, a stand-in runtime.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from allocator_programs import LIVE, timed
from measure import show, table

import penstock
from penstock.runtime.allocator import Allocator
from penstock.testing.fake import FakePort

ROUNDS = 7
HERE = Path(__file__).parent
ORACLE = HERE.parents[1] / "shared" / "torch-oracle" / "run.sh"
ORACLE_HOME = Path(os.environ.get("ORACLE_HOME", Path.home() / ".cache" / "torch-oracle"))
BOUNDS = {
    "pair": ("allocate + free, 1 KiB, cached", 130),
    "churn": (f"churn, {LIVE:,} live blocks of mixed sizes", 350),
    "history": ("cached, with history and 20-frame stacks", 500),
}


def measured(*command: str) -> dict[str, float]:
    program = [*command, str(HERE / "allocator_programs.py"), "pytorch" if "bash" in command else "penstock"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def side_by_side() -> None:
    oracle = (ORACLE_HOME / "lib").is_dir() and ORACLE.exists()
    ours, theirs = [], []
    for _ in range(ROUNDS):  # taking turns, so that a slow moment of the machine hits both
        ours.append(measured(sys.executable))
        if oracle:
            theirs.append(measured("bash", str(ORACLE)))
    made = table(
        f"Nanoseconds a pair, medians of {ROUNDS} fresh processes", "program", "penstock", "bound", "PyTorch", "ratio"
    )
    for key, (name, bound) in BOUNDS.items():
        mine = median(run[key] for run in ours)
        other = median(run[key] for run in theirs) if theirs else float("nan")
        beside = (f"{other:.0f}", f"{other / mine:.1f}") if theirs else ("not set up", "")
        made.add_row(name, f"{mine:.0f}", f"≤ {bound}", *beside)
    show(made)


def floors() -> None:
    allocator = Allocator("fake:0", FakePort(total=1 << 50), {})
    allocator.record(1000)
    allocator.record(0)

    def nothing(count: int) -> None:
        for _ in range(count):
            pass

    def empty(_: int) -> None: ...

    def call(function: object) -> object:
        def loop(count: int) -> None:
            for _ in range(count):
                function(1024)

        return loop

    made = table("Floors, and what stands on them: nanoseconds", "what", "ns")
    for name, loop in (
        ("an empty loop", nothing),
        ("calling an empty Python function", call(empty)),
        ("allocator.allocate(1024), history was on and is off", call(allocator.allocate)),
        ("penstock.allocate(1024): current device and stream looked up", call(penstock.allocate)),
    ):
        made.add_row(name, f"{timed(loop, 200_000, 9):.0f}")
    show(made)


def growth() -> None:
    made = table("Churn as live blocks grow, sizes 512 bytes to 64 KiB", "live blocks", "ns a pair")
    for live in (100, 1_000, 10_000, 100_000, 1_000_000):
        allocator, chance = Allocator("fake:0", FakePort(total=1 << 50), {}), random.Random(1)
        blocks: list[object] = [allocator.allocate(chance.randint(1, 65_536)) for _ in range(live)]
        times = []
        for _ in range(9):
            steps = [(chance.randrange(live), chance.randint(1, 65_536)) for _ in range(50_000)]
            start = time.perf_counter_ns()
            for at, nbytes in steps:
                blocks[at] = None
                blocks[at] = allocator.allocate(nbytes)
            times.append((time.perf_counter_ns() - start) / len(steps))
        made.add_row(f"{live:,}", f"{median(times):.0f}")
    show(made)


if __name__ == "__main__":
    floors()
    side_by_side()
    growth()
