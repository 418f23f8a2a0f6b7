"""Growth of memory from step to step, the sites that grow, and those that look like leaks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import Frame, Snapshot
from forebay.records.sites import find_sites
from forebay.snapshot.analysis.periods import Steps, find_steps
from forebay.snapshot.analysis.timeline import Timeline, reconstruct

__all__ = ["Growth", "SiteGrowth", "growth"]

_MOST_STEPS = 200  # of which the memory by site is compared; of more steps, some are left out
_STEADY = 0.8  # of the steps, those in which memory grows


@dataclass(frozen=True, slots=True)
class SiteGrowth:
    """Growth of the live memory of one site."""

    label: str  #: the site as text, see `forebay.records.sites.Sites`
    frame: Frame  #: the site
    per_step: float  #: bytes by which its live memory grows in a step, on average
    first_bytes: int  #: its live bytes at the beginning of the first step
    last_bytes: int  #: its live bytes at the end of the last step
    allocations: int  #: its allocations during the steps
    freed: int  #: those of them that were freed before the history ends

    @property
    def leaks(self) -> bool:
        """True if none of its allocations was freed."""
        return self.freed == 0


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """Growth of the live memory over the steps of a history."""

    steps: Steps  #: the steps
    first_bytes: int  #: requested bytes of live blocks at the beginning of the first step
    last_bytes: int  #: the same at the end of the last step
    per_step: float  #: bytes by which they grow in a step, on average
    grown: int  #: number of the steps in which they grow
    compared: int  #: number of the steps that were compared
    peak_per_step: float  #: bytes by which the highest memory of a step grows from step to step, on average
    sites: tuple[SiteGrowth, ...]  #: the sites that grow in every step, those that grow most first

    @property
    def steady(self) -> bool:
        """True if memory grows in most of the steps."""
        return self.per_step > 0 and self.grown >= _STEADY * self.compared

    @property
    def leaks(self) -> tuple[SiteGrowth, ...]:
        """The growing sites of whose allocations none was freed."""
        return tuple(site for site in self.sites if site.leaks)


def growth(snapshot: Snapshot, *, timeline: Timeline | None = None) -> Growth | None:
    """Return the growth of memory from step to step; None if the history does not repeat.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    timeline : Timeline, optional
        The result of `reconstruct(snapshot)`, if already known.
    """
    timeline = timeline or reconstruct(snapshot)
    steps = find_steps(snapshot, timeline)
    if steps is None:
        return None
    moments = steps.moments
    tops = np.maximum.reduceat(timeline.allocated, moments)[:-1]  # of each step
    if steps.count > _MOST_STEPS:
        moments = moments[np.unique(np.linspace(0, steps.count, _MOST_STEPS + 1).round().astype(np.int64))]
    levels = timeline.allocated[moments]
    return Growth(
        steps=steps,
        first_bytes=int(levels[0]),
        last_bytes=int(levels[-1]),
        per_step=float(levels[-1] - levels[0]) / steps.count,
        grown=int((np.diff(levels) > 0).sum()),
        compared=len(levels) - 1,
        peak_per_step=float(tops[-1] - tops[0]) / max(1, steps.count - 1),
        sites=_growing_sites(snapshot, timeline, moments, steps.count),
    )


def _growing_sites(
    snapshot: Snapshot, timeline: Timeline, moments: NDArray[np.int64], count: int
) -> tuple[SiteGrowth, ...]:
    """Return the sites whose live bytes increase from each of the moments to the next."""
    held, sites = timeline.allocations, find_sites(snapshot)
    site = sites.of_stack[held.stack]
    begin, end = np.searchsorted(moments, held.start, "left"), np.searchsorted(moments, held.end, "left")
    seen = begin < end  # live at one of the moments
    # A site that grows in each step allocates in each: the others need no row of the table, which would be huge.
    chosen = np.flatnonzero(np.bincount(site[seen], minlength=len(sites.frames)) >= len(moments) - 1)
    row = np.full(len(sites.frames), -1)
    row[chosen] = np.arange(len(chosen))
    seen &= row[site] >= 0
    changes = np.zeros((len(chosen), len(moments) + 1), np.int64)
    np.add.at(changes, (row[site[seen]], begin[seen]), held.nbytes[seen])
    np.subtract.at(changes, (row[site[seen]], end[seen]), held.nbytes[seen])
    levels = np.cumsum(changes, axis=1)[:, :-1]
    during = (held.start > moments[0]) & (held.start <= moments[-1])
    freed = during & (held.end < timeline.moments)
    allocations = np.bincount(site[during], minlength=len(sites.frames))
    frees = np.bincount(site[freed], minlength=len(sites.frames))
    grows = np.flatnonzero(np.all(np.diff(levels, axis=1) > 0, axis=1))
    found = []
    for at, level in zip(chosen[grows].tolist(), levels[grows], strict=True):
        first, last, frame = int(level[0]), int(level[-1]), sites.frames[at]
        growing = SiteGrowth(
            sites.labels[at], frame, (last - first) / count, first, last, int(allocations[at]), int(frees[at])
        )
        found.append(growing)
    return tuple(sorted(found, key=lambda growing: (-growing.per_step, growing.label)))
