"""Data shared by all sections of the page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forebay.records.model import Snapshot
from forebay.records.program_stacks import ProgramStacks, program_stacks
from forebay.records.site_labels import strip_common_folder
from forebay.records.sites import Sites, find_sites
from forebay.snapshot.analysis import summary as analysis_summary
from forebay.snapshot.analysis.largest_sites import split_largest
from forebay.snapshot.analysis.timeline import Timeline, reconstruct
from forebay.snapshot.report.text import no_allocations

__all__ = ["View", "make_view", "percentage"]

_TOP = 9  # the largest sites, whose common folder is left out in names


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Analysis results that the sections share."""

    name: str  # of the device, and of its file if there are several
    snapshot: Snapshot
    timeline: Timeline
    numbers: analysis_summary.Summary
    sites: Sites
    stacks: ProgramStacks
    folder: str  # that the largest sites share

    @property
    def recorded(self) -> bool:
        return len(self.snapshot.trace) > 0

    @property
    def empty_reason(self) -> str:
        """The reason why there is no history to draw."""
        if not self.snapshot.stats.get("allocation.all.allocated", 1):
            return no_allocations(self.snapshot)
        return "No history was recorded. The final state is shown below."

    def short(self, label: str) -> str:
        return label.removeprefix(self.folder)


def make_view(snapshot: Snapshot, name: str = "") -> View:
    """Analyse a snapshot."""
    timeline = reconstruct(snapshot)
    held = timeline.allocations
    snapshot = split_largest(snapshot, timeline)
    sites = find_sites(snapshot)
    site_bytes = np.zeros(len(sites.frames))
    np.add.at(site_bytes, sites.of_stack[held.stack], held.nbytes)
    largest = np.argsort(-site_bytes, kind="stable")[:_TOP]
    folder, _ = strip_common_folder([sites.labels[site] for site in largest if site_bytes[site]])
    numbers = analysis_summary.summary(snapshot, timeline=timeline)
    return View(name or snapshot.device, snapshot, timeline, numbers, sites, program_stacks(snapshot), folder)


def percentage(part: int, total: int, suffix: str) -> str:
    """Return text such as "45% used"; "" if the total is 0."""
    return f"{part / total:.0%} {suffix}" if total else ""
