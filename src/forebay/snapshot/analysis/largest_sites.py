"""Division of the sites that hold most of the memory, as a table with one row says nothing."""

from __future__ import annotations

from forebay.records.model import Snapshot
from forebay.records.sites import heavy_sites, with_split
from forebay.snapshot.analysis.timeline import Timeline

__all__ = ["largest_sites", "split_largest"]


def largest_sites(snapshot: Snapshot, timeline: Timeline, *moments: int) -> frozenset[str]:
    """Return the labels of the sites that hold more than half of the live bytes at one of the moments.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    timeline : Timeline
        The result of `reconstruct(snapshot)`.
    *moments : int
        The moments; the peak by default.
    """
    held = timeline.allocations
    found: frozenset[str] = frozenset()
    for moment in {*moments} or {timeline.peak}:
        live = held.live_at(moment)
        found |= heavy_sites(snapshot, held.stack[live], held.nbytes[live])
    return found


def split_largest(snapshot: Snapshot, timeline: Timeline, *moments: int) -> Snapshot:
    """Return the snapshot with the sites that `largest_sites` returns split by their lines in libraries.

    All analyses of the result have the same sites, so that the tables of one report agree.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    timeline : Timeline
        The result of `reconstruct(snapshot)`, which is also that of the new snapshot.
    *moments : int
        The moments; the peak by default.
    """
    return with_split(snapshot, largest_sites(snapshot, timeline, *moments))
