"""How every benchmark here measures: medians of repetitions, interleaved, with the floor beside them."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

REPETITIONS = 9

console = Console(width=None if sys.stdout.isatty() else 110)


def nanoseconds(loop: Callable[[int], object], count: int, repetitions: int = REPETITIONS) -> float:
    """Median over the repetitions of one operation's time, where `loop(n)` does n of them."""
    loop(max(1, count // 10))
    gc.collect()
    gc.disable()
    try:
        times = []
        for _ in range(repetitions):
            start = time.perf_counter_ns()
            loop(count)
            times.append((time.perf_counter_ns() - start) / count)
    finally:
        gc.enable()
    return statistics.median(times)


def machine() -> str:
    """What the figures below were measured on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = next((line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line), model)
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def table(title: str, *columns: str) -> Table:
    """A table whose first column is words and whose others are figures."""
    made = Table(title=title, title_justify="left", caption=machine(), caption_justify="left")
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left")
    return made


def show(made: Table) -> None:
    console.print(made)
    console.print()
