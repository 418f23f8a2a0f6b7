"""The memory use of one cell of a notebook: as HTML with a timeline, and as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forebay._base.byte_sizes import format_bytes
from forebay._base.html_repr import Html, box, facts, note
from forebay._base.untrusted import printable
from forebay.records.model import Action, Snapshot
from forebay.records.site_labels import with_library
from forebay.snapshot.analysis import summary
from forebay.snapshot.analysis.largest_sites import split_largest
from forebay.snapshot.analysis.timeline import Timeline, reconstruct
from forebay.snapshot.report.notebook import site_table, timeline_figure
from forebay.snapshot.report.text import format_duration

__all__ = ["CellMeasurement", "CellReport"]

_SMALL = 64 << 10  # bytes of small arrays that are not worth a remark


@dataclass(frozen=True, slots=True)
class CellMeasurement:
    """Measurements of one cell of a notebook. Sizes are in bytes, times in nanoseconds of Unix time."""

    start_ns: int
    end_ns: int
    peak: int  # in blocks
    peak_above: int  # above the start
    reserved: int  # at most
    allocations: int
    small_count: int  # NumPy arrays that were not allocated on the device
    small_bytes: int
    numpy_device: str  # on which NumPy's arrays were allocated; "" if that is not measured


class CellReport:
    """The memory use of a cell. Displayed by a notebook as HTML, by a terminal as text."""

    measured: CellMeasurement
    remained: int
    remained_count: int
    rows: int

    def __init__(
        self, snapshot: Snapshot, measured: CellMeasurement, rows: int, cell_of: Callable[[str], int | None]
    ) -> None:
        in_cell = snapshot.trace["time_ns"] >= measured.start_ns
        self.trace_is_complete: bool = bool(len(in_cell)) and (not snapshot.lost or not bool(in_cell[0]))
        cells = {name: cell_of(name) for name in snapshot.strings}
        strings = tuple(name if (n := cells[name]) is None else f"cell [{n}]" for name in snapshot.strings)
        inside = replace(snapshot, trace=snapshot.trace[in_cell], strings=strings)
        self.measured, self.rows = measured, rows
        self.timeline: Timeline = reconstruct(inside)
        self.snapshot: Snapshot = split_largest(inside, self.timeline)
        self.recorded: bool = len(self.snapshot.trace) > 0
        self.uses: list[summary.SiteUse] = summary.sites(self.snapshot, timeline=self.timeline) if self.recorded else []
        kept = self.timeline.allocations
        remained = (kept.start > 0) & (kept.end == self.timeline.moments)
        self.remained, self.remained_count = int(kept.nbytes[remained].sum()), int(remained.sum())
        self.remaining_uses: list[summary.SiteUse] = self._remaining(remained) if self.remained_count else []

    def _remaining(self, rows: NDArray[np.bool_]) -> list[summary.SiteUse]:
        held = self.timeline.allocations
        only = replace(
            held, start=held.start[rows], end=held.end[rows], nbytes=held.nbytes[rows], stack=held.stack[rows]
        )
        last = self.timeline.moments - 1
        return summary.sites(self.snapshot, last, timeline=replace(self.timeline, allocations=only))

    @property
    def title(self) -> str:
        """The heading, with the device and the duration."""
        duration = format_duration(self.measured.end_ns - self.measured.start_ns)
        return f"Memory of {self.snapshot.device} during the cell: {duration}"

    def figures(self) -> list[tuple[str, str]]:
        """Return names and values."""
        measured = self.measured
        counted = int(np.count_nonzero(self.snapshot.trace["action"] == Action.ALLOC))
        allocations = max(measured.allocations, counted)
        figures = [
            ("peak allocated", f"{format_bytes(measured.peak)}, {format_bytes(measured.peak_above)} above the start"),
            ("peak reserved", format_bytes(measured.reserved)),
            ("allocations", f"{allocations:,}"),
        ]
        if self.recorded or not allocations:
            remained = f"{format_bytes(self.remained)} in {_count(self.remained_count, 'allocation')} of the cell"
            figures.append(("remained", remained if self.remained_count else "nothing"))
        return figures

    def remarks(self) -> list[str]:
        """Return what limits the figures."""
        found, measured = [], self.measured
        if not self.recorded and measured.allocations:
            found.append("The cell stopped or cleared the history, so there is no timeline.")
        elif self.recorded and not self.trace_is_complete:
            count = f"{len(self.snapshot.trace):,}"
            found.append(f"The history has only the last {count} entries: the timeline begins there.")
        if measured.numpy_device not in ("", self.snapshot.device):
            found.append(f"NumPy's arrays were allocated on {measured.numpy_device}.")
        if measured.numpy_device and measured.small_bytes >= max(_SMALL, measured.peak_above // 20):
            arrays = f"{_count(measured.small_count, 'small NumPy array')}, {format_bytes(measured.small_bytes)} in all"
            found.append(f"Not included: {arrays}, which NumPy's own allocator provided.")
        return found

    def _repr_html_(self) -> str:
        parts = [facts(self.figures())]
        if self.recorded:
            parts.append(timeline_figure(self.timeline, self.measured.start_ns, self.measured.end_ns))
            if self.rows:
                parts.append(site_table(self.uses, "allocated at the peak, by site", self.rows))
            if self.rows and self.remaining_uses:
                parts.append(site_table(self.remaining_uses, "remained after the cell, by site", self.rows))
        elif not self.measured.allocations:
            parts.append(note(f"The cell allocated nothing on {self.snapshot.device}."))
        return Html(box(self.title, *parts, *map(note, self.remarks())))

    def __repr__(self) -> str:
        names = self.figures()
        lines = [printable(self.title), *(f"  {name:15} {value}" for name, value in names)]
        for heading, uses in (("at the peak", self.uses), ("remained", self.remaining_uses)):
            if uses and self.rows:
                lines.append(f"  {heading}:")
                lines += [
                    f"  {format_bytes(u.live_bytes):>12} {u.share:6.1%}  {with_library(u.label, u.library)}"
                    for u in uses[: self.rows]
                ]
                if rest := uses[self.rows :]:
                    total = format_bytes(sum(use.live_bytes for use in rest))
                    lines.append(f"  {total:>12} {sum(u.share for u in rest):6.1%}  {_count(len(rest), 'other site')}")
        return "\n".join([*lines, *(f"  {text}" for text in self.remarks())])


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
