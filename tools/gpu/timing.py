"""Alternating measurements, and their table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["REPETITIONS", "Comparison", "Side", "markdown", "microseconds"]

REPETITIONS = 9

Work = Callable[[], object]
Side = tuple[str, Work]  # of a comparison: its name, and one operation


@dataclass(frozen=True)
class Comparison:
    """Medians of one operation by forebay and by others, in one unit."""

    name: str
    unit: str
    forebay: float
    others: dict[str, float]


def microseconds(
    name: str, sides: Sequence[Side], count: int, synchronize: Work, *, completed: bool = False
) -> Comparison:
    """Measure an operation of forebay, which is the first side, and of others, alternating in this process.

    Parameters
    ----------
    name : str
        Name of the operation.
    sides : sequence of Side
        The operation of each side.
    count : int
        Number of operations in one measurement.
    synchronize : callable
        Function that waits for the GPU.
    completed : bool, default False
        Whether the time ends when the work has completed, and not when it is queued.
    """
    times: dict[str, list[float]] = {side: [] for side, _ in sides}
    for repetition in range(REPETITIONS + 1):
        for side, work in sides:
            synchronize()
            start = time.perf_counter_ns()
            for _ in range(count):
                work()
            if completed:
                synchronize()
            spent = (time.perf_counter_ns() - start) / count / 1000
            if repetition:  # the first one fills caches
                times[side].append(spent)
    synchronize()
    medians = {side: median(values) for side, values in times.items()}
    ours = medians.pop(sides[0][0])
    return Comparison(name, "µs", ours, medians)


def markdown(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a table of comparisons; a ratio is forebay's figure divided by the other one."""
    lines = ["| operation | unit | forebay | compared with | its figure | ratio |", "|---|---|---|---|---|---|"]
    for each in comparisons:
        start = f"| {each.name} | {each.unit} | {each.forebay:,.2f} |"
        others = each.others or {"": 0.0}
        for name, figure in others.items():
            lines.append(
                f"{start} {name} | {figure:,.2f} | {each.forebay / figure:.2f} |" if figure else f"{start} | | |"
            )
            start = "| | | |"
    return lines
