"""Data shared by all sections of the page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.snapshot.analysis import summary as analysis_summary
from forebay.snapshot.analysis.timeline import Timeline, reconstruct
from forebay.snapshot.model import Snapshot
from forebay.snapshot.report.text import NO_ALLOCATIONS
from forebay.snapshot.sites import Sites, find_sites, label_of, strip_common_folder

__all__ = ["TOP", "View", "color_class", "make_view", "percentage"]

TOP = 9  # sites with their own color; a tenth could not be distinguished with color blindness


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Analysis results that the sections share."""

    snapshot: Snapshot
    timeline: Timeline
    numbers: analysis_summary.Summary
    uses: list[analysis_summary.SiteUse]  # at the peak
    totals: list[analysis_summary.SiteTotal]
    sites: Sites
    rank: NDArray[np.int64]  # color index of each site; TOP for the rest
    top: list[str]  # labels by rank
    folder: str  # that the top sites share

    @property
    def recorded(self) -> bool:
        return len(self.snapshot.trace) > 0

    @property
    def empty_reason(self) -> str:
        """The reason why there is no history to draw."""
        if not self.snapshot.stats.get("allocation.all.allocated", 1):
            return NO_ALLOCATIONS
        return "No history was recorded. The final state is shown below."

    def short(self, label: str) -> str:
        return label.removeprefix(self.folder)


def make_view(snapshot: Snapshot) -> View:
    """Analyse a snapshot."""
    timeline = reconstruct(snapshot)
    uses, totals = (
        analysis_summary.sites(snapshot, timeline=timeline),
        analysis_summary.totals(snapshot, timeline=timeline),
    )
    sites = find_sites(snapshot)
    older = analysis_summary.sites(snapshot, 0, timeline=timeline)  # the ring may have lost where they were allocated
    labels = [use.label for use in uses] + [whole.label for whole in totals] + [use.label for use in older]
    top = list(dict.fromkeys(labels))[:TOP]
    ranks = {label: rank for rank, label in enumerate(top)}
    rank = np.array([ranks.get(label_of(frame), TOP) for frame in sites.frames])
    folder, _ = strip_common_folder(top)
    numbers = analysis_summary.summary(snapshot, timeline=timeline)
    return View(snapshot, timeline, numbers, uses, totals, sites, rank, top, folder)


def color_class(view: View, label: str) -> str:
    """Return the CSS class of the color of a site."""
    return f"k{view.top.index(label) if label in view.top else TOP}"


def percentage(part: int, total: int, suffix: str) -> str:
    """Return text such as "45% used"; "" if the total is 0."""
    return f"{part / total:.0%} {suffix}" if total else ""
