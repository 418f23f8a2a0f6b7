"""Common functions of the benchmarks: alternating runs and result tables."""

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
    """Describe the machine and the Python version."""
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
    """Return the results of alternating runs, so that load on the machine affects all measures."""
    return [tuple(measure() for measure in measures) for _ in range(repetitions)]


def table(title: str, *columns: str) -> Table:
    """Create a table with a column of labels and columns of figures."""
    result = Table(title=title, title_justify="left", caption=machine(), caption_justify="left")
    for number, column in enumerate(columns):
        result.add_column(column, justify="right" if number else "left")
    return result


def show(result: Table) -> None:
    console.print(result)
    console.print()
