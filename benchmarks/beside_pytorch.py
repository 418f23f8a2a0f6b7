"""Compare the same program on forebay and on PyTorch: alternating fresh processes, medians and their ratio.

PyTorch's figures are left out if its oracle is not set up (../shared/torch-oracle/setup.sh).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from measure import show, table

ROUNDS = 7
HERE = Path(__file__).parent
ORACLE = Path(os.environ.get("ORACLE", HERE.parents[1] / "shared" / "torch-oracle" / "run.sh"))
ORACLE_HOME = Path(os.environ.get("ORACLE_HOME", Path.home() / ".cache" / "torch-oracle"))

# Label, key of forebay's figure, key of PyTorch's figure, smallest acceptable ratio.
Row = tuple[str, str, str, float | None]


def run(program: str, side: str, group: str) -> dict[str, Any]:
    interpreter = [sys.executable] if side == "forebay" else ["bash", str(ORACLE)]
    command = [*interpreter, str(HERE / f"{program}.py"), side, group]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def both(program: str, group: str, rounds: int = ROUNDS) -> tuple[dict[str, float], dict[str, float]]:
    """Return the medians of alternating runs, so that load on the machine affects both sides."""
    runs: dict[str, list[dict[str, Any]]] = {"forebay": [], "pytorch": []}
    oracle = (ORACLE_HOME / "lib").is_dir() and ORACLE.exists()
    for _ in range(rounds):
        for side in runs if oracle else ("forebay",):
            runs[side].append(run(program, side, group))
    ours, theirs = (
        {key: median(run[key] for run in side) for key in side[0]} if side else {} for side in runs.values()
    )
    return ours, theirs


def ratio(ours: float, theirs: float | None) -> tuple[str, str]:
    return ("not set up", "") if theirs is None else (shown(theirs), f"{theirs / ours:.1f}")


def shown(nanoseconds: float) -> str:
    return f"{nanoseconds:,.0f}"


def rows(program: str, title: str, group: str, wanted: tuple[Row, ...]) -> None:
    ours, theirs = both(program, group)
    result = table(
        f"{title}, medians of {ROUNDS} fresh processes", "forebay | PyTorch", "forebay", "PyTorch", "ratio", "bound"
    )
    for name, our_key, their_key, bound in wanted:
        result.add_row(
            name, shown(ours[our_key]), *ratio(ours[our_key], theirs.get(their_key)), f"≥ {bound}" if bound else ""
        )
    show(result)
