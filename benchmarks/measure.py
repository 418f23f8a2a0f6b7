"""How every benchmark here measures: medians of repetitions, interleaved, with the floor beside them."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

REPETITIONS = 9

console = Console(width=None if sys.stdout.isatty() else 110)


def machine() -> str:
    """What the figures below were measured on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = next(
            (line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line), model
        )
    return (
        f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    )


def in_turns(*measures: Callable[[], float], repetitions: int = REPETITIONS) -> list[tuple[float, ...]]:
    """What each gave in each turn, so that a slow moment of the machine hits all."""
    return [tuple(measure() for measure in measures) for _ in range(repetitions)]


def table(title: str, *columns: str) -> Table:
    """A table whose first column is words and whose others are figures."""
    made = Table(title=title, title_justify="left", caption=machine(), caption_justify="left")
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left")
    return made


def show(made: Table) -> None:
    console.print(made)
    console.print()
