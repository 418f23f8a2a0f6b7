"""Figures of a device in a snapshot as JSON values: key figures, sites at a moment, memory over time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import Snapshot
from forebay.snapshot.analysis.largest_sites import split_largest
from forebay.snapshot.analysis.summary import ooms, sites, summary
from forebay.snapshot.analysis.timeline import Timeline, reconstruct

__all__ = ["device_figures"]


def device_figures(
    snapshot: Snapshot, *, moment: int | None = None, rows: int = 20, points: int = 100
) -> dict[str, Any]:
    """Return what `forebay view` shows of a device, as values that `json.dumps` accepts.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    moment : int, optional
        The moment whose sites are listed, a number of history entries; the peak by default.
    rows : int, default 20
        Most sites in the list.
    points : int, default 100
        Most points of the memory over time. Of each part of the history, the moment with the most allocated bytes.

    Returns
    -------
    dict
        Sizes are in bytes, times in nanoseconds since 1970.

    Raises
    ------
    ValueError
        If the history has no such moment.
    """
    timeline = reconstruct(snapshot)
    last = timeline.moments - 1
    at = timeline.peak if moment is None else moment
    if not 0 <= at <= last:
        raise ValueError(f"{snapshot.device} has no moment {at:,}; choose from 0 to {last:,}")
    snapshot = split_largest(snapshot, timeline, timeline.peak, at)
    found = summary(snapshot, timeline=timeline)
    used = sites(snapshot, at, timeline=timeline)
    names = ("peak", "peak_ever", "current", "reserved", "peak_reserved", "largest_free")
    return {
        "device": snapshot.device,
        "entries": len(snapshot.trace),
        "lost_entries": found.lost,
        **{f"{name}_bytes": int(getattr(found, name)) for name in names},
        "allocations": int(found.allocations),
        "frees": int(found.frees),
        "span_ns": int(found.span_ns),
        "fragmentation": float(found.fragmentation),
        "peak_moment": int(timeline.peak),
        "out_of_memory": [
            {"moment": each.at, "time_ns": each.time_ns, "requested_bytes": each.wanted, "site": each.label}
            for each in ooms(snapshot)
        ],
        "moment": int(at),
        "sites": [
            {
                "site": each.label, "library": each.library, "live_bytes": int(each.live_bytes),
                "blocks": int(each.count), "largest_bytes": int(each.largest), "share": float(each.share),
            }
            for each in used[:rows]
        ],
        "other_sites": max(len(used) - rows, 0),
        "timeline": [
            {
                "moment": int(each), "time_ns": int(timeline.time_ns[each]),
                "allocated_bytes": int(timeline.allocated[each]), "reserved_bytes": int(timeline.reserved[each]),
            }
            for each in _moments(timeline, points)
        ],
    }  # fmt: skip


def _moments(timeline: Timeline, points: int) -> NDArray[np.intp]:
    """Return at most this many moments in order: the largest of each of as many parts of the history."""
    starts = np.unique(np.linspace(0, timeline.moments, max(points, 1), endpoint=False).astype(np.intp))
    ends = [*starts[1:].tolist(), timeline.moments]
    allocated = timeline.allocated
    return np.array(
        [start + int(np.argmax(allocated[start:end])) for start, end in zip(starts.tolist(), ends, strict=True)],
        np.intp,
    )
