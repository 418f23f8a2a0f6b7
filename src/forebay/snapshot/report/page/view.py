"""What all sections of the page share: the answers, worked out once, and the one way for foreign text into the page."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from forebay.snapshot.analysis import summary as analysis_summary
from forebay.snapshot.analysis.timeline import Timeline, reconstruct
from forebay.snapshot.model import Frame, Snapshot
from forebay.snapshot.report.text import NOTHING
from forebay.snapshot.sites import Sites, label_of, relative, site_of

__all__ = ["TOP", "View", "foreign", "key_of", "look", "part_of"]

TOP = 9  # sites with a colour of their own; the palette has no tenth that everybody can tell apart


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What all sections need: worked out once."""

    snapshot: Snapshot
    timeline: Timeline
    numbers: analysis_summary.Summary
    uses: list[analysis_summary.SiteUse]  # at the peak
    totals: list[analysis_summary.SiteTotal]
    known: Sites
    rank: NDArray[np.int64]  # of every site: its colour, TOP for the rest
    top: list[str]  # labels by rank
    home: str

    @property
    def recorded(self) -> bool:
        return len(self.snapshot.trace) > 0

    @property
    def why_nothing(self) -> str:
        """Why there is nothing to draw."""
        if not self.snapshot.stats.get("allocation.all.allocated", 1):
            return NOTHING
        return "No history was recorded, so there is nothing to draw. What is held now stands below."

    def short(self, label: str) -> str:
        return label.removeprefix(self.home)


def look(snapshot: Snapshot) -> View:
    timeline = reconstruct(snapshot)
    uses, totals = (
        analysis_summary.sites(snapshot, timeline=timeline),
        analysis_summary.totals(snapshot, timeline=timeline),
    )
    known = site_of(snapshot)
    top = list(dict.fromkeys([use.label for use in uses] + [whole.label for whole in totals]))[:TOP]
    places = {label: rank for rank, label in enumerate(top)}
    rank = np.array([places.get(label_of(frame), TOP) for frame in known.frames])
    home, _ = relative(top)
    numbers = analysis_summary.summary(snapshot, timeline=timeline)
    return View(snapshot, timeline, numbers, uses, totals, known, rank, top, home)


def foreign(text: str) -> str:
    return escape(label_of(Frame(text, "", 0)))  # which leaves out what no page should hold


def key_of(view: View, label: str) -> str:
    return f"k{view.top.index(label) if label in view.top else TOP}"


def part_of(part: int, whole: int, words: str) -> str:
    return f"{part / whole:.0%} {words}" if whole else ""
