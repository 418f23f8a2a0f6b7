"""Curves of the plot: sampling of moments, bytes of each layer at them, and SVG paths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.snapshot.analysis.timeline import Timeline

__all__ = ["HEIGHT", "WIDTH", "Curves", "area_path", "extremes", "line_path", "sample_curves", "sample_moments"]

WIDTH, HEIGHT = 4000, 1000  # of the drawing, in SVG units; the page scales it
_BUCKETS = 400  # 3 moments each by time and 2 each by entry: at most 2,000


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Bytes at the sampled moments, one row per layer; the last layer is for all other sites."""

    moments: NDArray[np.int64]
    layers: NDArray[np.int64]
    reserved_at: NDArray[np.int64]  # sampled separately, as `reserved` changes at other moments
    reserved: NDArray[np.int64]


def sample_curves(timeline: Timeline, rank: NDArray[np.int64], layers: int, required: list[int]) -> Curves:
    """Sample the curves of `layers` layers. `rank` is the layer of each allocation; `required` moments are kept."""
    moments = sample_moments(timeline, timeline.allocated, required)
    held, width = timeline.allocations, len(moments) + 1
    change = np.zeros(layers * width, np.int64)
    # A change counts from the first sampled moment at or after it; changes after the last one are cut off below.
    np.add.at(change, rank * width + np.searchsorted(moments, held.start), held.nbytes)
    np.subtract.at(change, rank * width + np.searchsorted(moments, held.end), held.nbytes)
    reserved_at = sample_moments(timeline, timeline.reserved, [])
    return Curves(
        moments=moments,
        layers=np.cumsum(change.reshape(layers, width), axis=1)[:, :-1],
        reserved_at=reserved_at,
        reserved=timeline.reserved[reserved_at],
    )


def sample_moments(timeline: Timeline, curve: NDArray[np.int64], required: list[int]) -> NDArray[np.int64]:
    """Choose about 2,000 moments that show the curve with all its extremes, both by entry and by time."""
    count = len(curve)
    if count <= 5 * _BUCKETS:
        return np.arange(count)
    by_entry = np.unique(np.linspace(0, count, _BUCKETS, endpoint=False).astype(np.int64))
    clock = np.maximum.accumulate(timeline.time_ns)
    by_time = np.unique(np.searchsorted(clock, np.linspace(clock[0], clock[-1], _BUCKETS, endpoint=False)))
    # The last moment of each bucket, too: during an idle period the curve must keep its last value.
    last = np.append(by_time[1:], count) - 1
    return np.unique(
        np.concatenate([extremes(curve, by_entry), extremes(curve, by_time), last, [0], required]).astype(int)
    )


def extremes(curve: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions of the minimum and the maximum of each bucket. A bucket ends where the next one starts."""
    lengths = np.diff(np.append(starts, len(curve)))
    found = []
    for best in (np.minimum.reduceat(curve, starts), np.maximum.reduceat(curve, starts)):
        hits = starts[0] + np.flatnonzero(curve[starts[0] :] == np.repeat(best, lengths))
        found.append(hits[np.searchsorted(hits, starts)])
    return np.concatenate(found)


def line_path(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    """Return a step path through points from 0 to 1, where y = 1 is the top."""
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


def area_path(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    """Return the step path closed at y = 0."""
    return f"{line_path(x, y)}V{HEIGHT}H{round(float(x[0]) * WIDTH)}Z"
