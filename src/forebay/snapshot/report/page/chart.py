"""The curves: which moments to keep, what every site holds at them, and the paths an SVG draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.snapshot.analysis.timeline import Timeline

__all__ = ["HEIGHT", "WIDTH", "Curves", "area", "curves", "extremes", "keep", "line"]

WIDTH, HEIGHT = 4000, 1000  # of the drawing, in its own units; the page stretches it
_BUCKETS = 400  # 3 moments each by time and 2 each by entry: at most 2,000


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Bytes at the kept moments: a row for each layer, the last one for everything else."""

    moments: NDArray[np.int64]
    layers: NDArray[np.int64]
    reserved_at: NDArray[np.int64]  # moments of its own, as it changes at others
    reserved: NDArray[np.int64]


def curves(timeline: Timeline, rank: NDArray[np.int64], layers: int, also: list[int]) -> Curves:
    """The curves of `layers` ranks (one of each allocation); `also` are moments that must be kept."""
    moments = keep(timeline, timeline.allocated, also)
    held, wide = timeline.allocations, len(moments) + 1
    change = np.zeros(layers * wide, np.int64)
    # A change counts from the first kept moment at or after it; what comes after the last is cut off below.
    np.add.at(change, rank * wide + np.searchsorted(moments, held.start), held.nbytes)
    np.subtract.at(change, rank * wide + np.searchsorted(moments, held.end), held.nbytes)
    reserved_at = keep(timeline, timeline.reserved, [])
    return Curves(
        moments=moments,
        layers=np.cumsum(change.reshape(layers, wide), axis=1)[:, :-1],
        reserved_at=reserved_at,
        reserved=timeline.reserved[reserved_at],
    )


def keep(timeline: Timeline, curve: NDArray[np.int64], also: list[int]) -> NDArray[np.int64]:
    """At most about 2,000 moments that show the curve, by entries and by time, with every extreme in them."""
    count = len(curve)
    if count <= 5 * _BUCKETS:
        return np.arange(count)
    by_entry = np.unique(np.linspace(0, count, _BUCKETS, endpoint=False).astype(np.int64))
    clock = np.maximum.accumulate(timeline.time_ns)
    by_time = np.unique(np.searchsorted(clock, np.linspace(clock[0], clock[-1], _BUCKETS, endpoint=False)))
    # The last of a bucket as well: through an idle hour the curve must stay where it really stayed.
    last = np.append(by_time[1:], count) - 1
    return np.unique(np.concatenate([extremes(curve, by_entry), extremes(curve, by_time), last, [0], also]).astype(int))


def extremes(curve: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each bucket has its smallest and its largest value; buckets run from one start to the next."""
    lengths = np.diff(np.append(starts, len(curve)))
    found = []
    for best in (np.minimum.reduceat(curve, starts), np.maximum.reduceat(curve, starts)):
        hits = starts[0] + np.flatnonzero(curve[starts[0] :] == np.repeat(best, lengths))
        found.append(hits[np.searchsorted(hits, starts)])
    return np.concatenate(found)


def line(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    """A path in steps through points from 0 to 1 (up is 1); memory holds its size until it changes."""
    across = np.rint(x * WIDTH).astype(int).tolist()
    down = np.rint((1 - y) * HEIGHT).astype(int).tolist()
    parts, at, level = [f"M{across[0]} {down[0]}"], across[0], down[0]
    for new_at, new_level in zip(across, down, strict=True):
        if new_level != level:
            if new_at != at:
                parts.append(f"H{new_at}")
            parts.append(f"V{new_level}")
            at, level = new_at, new_level
    parts.append(f"H{WIDTH}")
    return "".join(parts)


def area(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    """The same, filled down to zero."""
    return f"{line(x, y)}V{HEIGHT}H{round(float(x[0]) * WIDTH)}Z"
