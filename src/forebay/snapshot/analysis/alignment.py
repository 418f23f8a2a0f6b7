"""Memory over time of two snapshots on one axis: steps where both histories repeat, or else time or entries."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import Snapshot
from forebay.snapshot.analysis.periods import Steps, find_steps
from forebay.snapshot.analysis.timeline import Timeline

__all__ = ["Alignment", "Axis", "align"]

_BINS = 240  # of the axis
_ALIKE = 2.0  # ratio of the lengths of steps, above which they are not the same


class Axis(StrEnum):
    """Kinds of a common axis."""

    STEPS = "steps"  # steps of a program that repeats: the n-th of both begin at the same place
    TIME = "time"  # seconds since each history began
    ENTRIES = "entries"  # entries of each history, where a file has no times


@dataclass(frozen=True, slots=True)
class Alignment:
    """The most live bytes of two histories in equal parts of a common axis."""

    axis: Axis  #: the kind of the axis
    #: Its beginning and end, in steps, seconds or entries. The first step begins at 0: what precedes it is negative.
    start: float
    end: float
    steps: tuple[int, int]  #: number of steps of both; 0 for another axis
    before: tuple[int | None, ...]  #: bytes of the first snapshot in each part; None where it has no history
    after: tuple[int | None, ...]  #: those of the second snapshot


def align(snapshots: tuple[Snapshot, Snapshot], timelines: tuple[Timeline, Timeline]) -> Alignment | None:
    """Return the memory of two snapshots on a common axis; None if one of them has no history.

    Parameters
    ----------
    snapshots : tuple of Snapshot
        The snapshots.
    timelines : tuple of Timeline
        The results of `reconstruct` for them.
    """
    if not all(len(snapshot.trace) for snapshot in snapshots):
        return None
    first, second = (find_steps(*pair) for pair in zip(snapshots, timelines, strict=True))
    axis, places = Axis.ENTRIES, [np.arange(each.moments, dtype=np.float64) for each in timelines]
    steps = 0, 0
    if first is not None and second is not None and _are_alike(first, second):
        axis, steps = Axis.STEPS, (first.count, second.count)
        pairs = [*zip((first, second), timelines, strict=True)]
        around = [max(lengths) for lengths in zip(*(_around(*pair) for pair in pairs), strict=True)]
        places = [_in_steps(*pair, *around) for pair in pairs]
    elif all(_has_times(each) for each in timelines):
        axis, places = Axis.TIME, [(each.time_ns - each.time_ns[0]) / 1e9 for each in timelines]
    start, end = (float(bound(place[at] for place in places)) for bound, at in ((min, 0), (max, -1)))
    edges = np.linspace(start, end, _BINS + 1).round(9)
    curves = [_highest(each.allocated, place, edges) for each, place in zip(timelines, places, strict=True)]
    return Alignment(axis, start, end, steps, curves[0], curves[1])


def _are_alike(first: Steps, second: Steps) -> bool:
    shorter, longer = sorted((first.allocations, second.allocations))
    return longer <= _ALIKE * shorter


def _has_times(timeline: Timeline) -> bool:
    return bool((np.diff(timeline.time_ns) >= 0).all()) and timeline.time_ns[-1] > timeline.time_ns[0]


def _around(steps: Steps, timeline: Timeline) -> tuple[float, float]:
    """Return the entries before the first and after the last step, in lengths of a step."""
    length = max(float(np.median(np.diff(steps.moments))), 1.0)
    return float(steps.moments[0]) / length, float(timeline.moments - 1 - steps.moments[-1]) / length


def _in_steps(steps: Steps, timeline: Timeline, before: float, after: float) -> NDArray[np.float64]:
    """Return the place of each moment: its step, and how much of the step's entries precede it.

    What is before the first step and after the last one has the same length in both histories, the longer one's.
    """
    count = steps.count
    knots, places = [*steps.moments.tolist()], [*map(float, range(count + 1))]
    last = timeline.moments - 1
    if knots[0] > 0:
        knots, places = [0, *knots], [-before, *places]
    if knots[-1] < last:
        knots, places = [*knots, last], [*places, count + after]
    return np.interp(np.arange(timeline.moments), knots, places).round(9)  # equal in both, whatever precedes


def _highest(
    allocated: NDArray[np.int64], places: NDArray[np.float64], edges: NDArray[np.float64]
) -> tuple[int | None, ...]:
    """Return the most bytes between each edge and the next one."""
    begin = np.searchsorted(places, edges[:-1], "right") - 1  # what was live at the edge is live after it
    stop = np.searchsorted(places, edges[1:], "left")
    found: list[int | None] = []
    for first, last, edge, following in zip(begin.tolist(), stop.tolist(), edges[:-1], edges[1:], strict=True):
        if edge > places[-1] or following <= places[0]:
            found.append(None)
        else:
            low = max(first, 0)
            found.append(int(allocated[low : max(last, low + 1)].max()))
    return tuple(found)
