"""The same program for forebay and for PyTorch: fresh processes that take turns, medians, and their ratio.

PyTorch runs where its oracle is set up (../shared/torch-oracle/setup.sh); a figure of its own is missing where not.
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

# What it is, our figure, PyTorch's, the least ratio.
Row = tuple[str, str, str, float | None]


def measured(program: str, side: str, group: str) -> dict[str, Any]:
    interpreter = [sys.executable] if side == "forebay" else ["bash", str(ORACLE)]
    command = [*interpreter, str(HERE / f"{program}.py"), side, group]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def both(program: str, group: str, rounds: int = ROUNDS) -> tuple[dict[str, float], dict[str, float]]:
    """Medians of the rounds, in which both take turns, so that a slow moment of the machine hits both."""
    runs: dict[str, list[dict[str, Any]]] = {"forebay": [], "pytorch": []}
    oracle = (ORACLE_HOME / "lib").is_dir() and ORACLE.exists()
    for _ in range(rounds):
        for side in runs if oracle else ("forebay",):
            runs[side].append(measured(program, side, group))
    ours, theirs = (
        {key: median(run[key] for run in side) for key in side[0]} if side else {} for side in runs.values()
    )
    return ours, theirs


def ratio(mine: float, other: float | None) -> tuple[str, str]:
    return ("not set up", "") if other is None else (shown(other), f"{other / mine:.1f}")


def shown(nanoseconds: float) -> str:
    return f"{nanoseconds:,.0f}"


def rows(program: str, title: str, group: str, wanted: tuple[Row, ...]) -> None:
    ours, theirs = both(program, group)
    made = table(
        f"{title}, medians of {ROUNDS} fresh processes", "forebay | PyTorch", "forebay", "PyTorch", "ratio", "bound"
    )
    for name, mine, other, bound in wanted:
        made.add_row(name, shown(ours[mine]), *ratio(ours[mine], theirs.get(other)), f"≥ {bound}" if bound else "")
    show(made)
