"""State of `forebay view`: a range of moments, a cursor, and the texts about the moment at the cursor."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from forebay._base.byte_sizes import format_bytes
from forebay._base.untrusted import printable
from forebay.records.model import Action, Frame, Snapshot
from forebay.records.site_labels import label_of, strip_common_folder
from forebay.records.sites import find_sites
from forebay.snapshot.analysis import summary
from forebay.snapshot.analysis.largest_sites import split_largest
from forebay.snapshot.analysis.spans import Span, lanes, named_steps, spans
from forebay.snapshot.analysis.timeline import NEVER_SEEN, Timeline, reconstruct
from forebay.snapshot.report.source_lines import source_line
from forebay.snapshot.report.terminal_bands import draw_bands
from forebay.snapshot.report.terminal_chart import COLORS, ChartColumns, chart_columns, draw
from forebay.snapshot.report.text import format_duration

__all__ = ["SiteRow", "ViewModel"]

_ROWS = 200  # sites that are listed
_FRAMES = 200  # frames of a stack that are listed
_LANES = 3  # of the program's ranges, below the chart
_MIN_RANGE = 8  # moments that are shown at least
_WORDS = {
    Action.ALLOC: "allocate", Action.FREE_REQUESTED: "free", Action.FREE_COMPLETED: "complete the free of",
    Action.RESERVE: "reserve a segment of", Action.RELEASE: "release a segment of", Action.OOM: "run out of memory for",
    Action.MAP: "map", Action.UNMAP: "unmap", Action.SNAPSHOT: "take a snapshot of", Action.ANNOTATE: "annotate",
}  # fmt: skip


class SiteRow(NamedTuple):
    """Live memory of a site at the cursor. `layer` is its layer in the chart."""

    site: int
    layer: int
    nbytes: int
    share: float
    blocks: int
    label: str
    found: bool  # by the search


class ViewModel:
    """A device of a snapshot file, as `forebay view` shows it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.timeline: Timeline = reconstruct(snapshot)
        self.snapshot: Snapshot = split_largest(snapshot, self.timeline)
        self.last: int = self.timeline.moments - 1
        self.first: int = 0  # of the range of moments that is shown
        self.end: int = self.last  # its last
        self.cursor: int = self.timeline.peak
        self.ooms: NDArray[np.int64] = np.flatnonzero(snapshot.trace["action"] == Action.OOM) + 1
        self.pattern: str = ""
        self.spans: list[Span] = spans(snapshot)
        self.lanes: list[list[Span]] = lanes(self.spans, _LANES)
        held = self.timeline.allocations
        sites = find_sites(self.snapshot)
        self._site_of_stack = sites.of_stack
        self._site = sites.of_stack[held.stack]
        self.folder: str
        self.folder, self._labels = strip_common_folder([*sites.labels])
        self._layer_of_site = self._rank_sites(len(sites.frames))
        self._layer = self._layer_of_site[self._site]
        self._found_stacks = np.zeros(len(snapshot.stacks) + 1, bool)  # the last element is for NEVER_SEEN

    def _rank_sites(self, sites: int) -> NDArray[np.int64]:
        """Return the layer of each site: those with the most bytes at the peak have their own."""
        live = self.timeline.allocations.live_at(self.timeline.peak)
        nbytes = np.bincount(self._site[live], self.timeline.allocations.nbytes[live], minlength=sites)
        layers = np.full(sites, len(COLORS) - 1)
        largest = np.argsort(-nbytes, kind="stable")[: len(COLORS) - 1]
        layers[largest] = np.arange(len(largest))
        return layers

    # Moving

    def move_to(self, moment: int) -> None:
        """Move the cursor, and the range if the moment is outside."""
        self.cursor = min(max(moment, 0), self.last)
        span = self.end - self.first
        if self.cursor < self.first:
            self.first, self.end = self.cursor, self.cursor + span
        elif self.cursor > self.end:
            self.first, self.end = self.cursor - span, self.cursor

    def move_by_columns(self, count: int, width: int) -> None:
        """Move the cursor to the moment that another column of a chart of this width shows."""
        columns = self.columns(width)
        at = columns.column_of(self.cursor)
        target = self.cursor
        while 0 <= (at := at + count) < width and target == self.cursor:
            target = int(columns.moments[at])
        if target == self.cursor:  # the cursor is in the first or the last column
            target += count * max((self.end - self.first) // width, 1)
        self.move_to(target)

    def zoom(self, factor: float) -> None:
        """Show a range of `factor` times the length, with the cursor at the same place."""
        span = self.end - self.first
        length = min(max(round(span * factor), _MIN_RANGE), self.last)
        if length == span:
            return
        before = round((self.cursor - self.first) / max(span, 1) * length)
        self.first = min(max(self.cursor - before, 0), self.last - length)
        self.end = self.first + length

    def next_oom(self) -> bool:
        """Move to the next out-of-memory event, from the last to the first. Return False if there is none."""
        if not len(self.ooms):
            return False
        self.move_to(int(self.ooms[np.searchsorted(self.ooms, self.cursor, side="right") % len(self.ooms)]))
        return True

    def next_step(self, count: int) -> bool:
        """Move to the beginning of the step that is `count` steps away. Return False if the program marked none."""
        starts = np.unique([span.begin for span in named_steps(self.spans, self.timeline.moments)]).astype(np.int64)
        if not len(starts):
            return False
        at = int(np.searchsorted(starts, self.cursor, side="right" if count > 0 else "left")) - (count < 0)
        self.move_to(int(starts[min(max(at, 0), len(starts) - 1)]))
        return True

    # Searching

    def search(self, pattern: str) -> bool:
        """Find stacks whose frames contain the text, in any case, or an address such as 0x7f00. True if any exists."""
        self.pattern = pattern.strip()
        wanted = self.pattern.casefold()
        self._found_stacks[:] = False
        if not wanted or self._address() is not None:
            return bool(len(self._matches()))
        snapshot = self.snapshot
        words = [text.casefold() for text in snapshot.strings] or [""]
        texts = np.array([wanted in word for word in words])
        if len(snapshot.frames):
            frames = texts[snapshot.frames["file"]] | texts[snapshot.frames["name"]]
            file, colon, line = wanted.rpartition(":")
            if colon and (not line or line.isdecimal()):
                ends = np.array([word.endswith(file) for word in words])
                frames |= ends[snapshot.frames["file"]] & np.char.startswith(snapshot.frames["line"].astype(str), line)
            found = frames[snapshot.stacks["frame"]]
            found[0] = False  # no stack
            parent = snapshot.stacks["parent"]
            while (grown := found | found[parent]).sum() != found.sum():  # at most as often as a stack has frames
                found = grown
            self._found_stacks[:-1] = found
        return bool(len(self._matches()))

    def next_match(self, backwards: bool = False) -> bool:
        """Move to the next entry that matches the search, from the last to the first. Return False if none does."""
        moments = self._matches()
        if not len(moments):
            return False
        if backwards:
            at = int(np.searchsorted(moments, self.cursor, side="left")) - 1
        else:
            at = int(np.searchsorted(moments, self.cursor, side="right")) % len(moments)
        self.move_to(int(moments[at]))
        return True

    def _address(self) -> int | None:
        try:
            return int(self.pattern, 16) if self.pattern.lower().startswith("0x") else None
        except ValueError:
            return None

    def _matches(self) -> NDArray[np.int64]:
        """Return the moments after the entries that match the search."""
        trace, address = self.snapshot.trace, self._address()
        if address is None:
            return np.flatnonzero(self._found_stacks[trace["stack"]]) + 1
        if address >= 1 << 64:
            return np.zeros(0, np.int64)
        offset = np.uint64(address) - trace["address"]  # wraps around for blocks that begin later
        return np.flatnonzero((offset < trace["nbytes"]) & (trace["action"] != Action.OOM)) + 1

    # Showing

    def columns(self, width: int) -> ChartColumns:
        """Return the columns of a chart of this width."""
        return chart_columns(self.timeline, self._layer, len(COLORS), self.first, self.end, width)

    def chart(self, width: int, height: int) -> list[Text]:
        """Return the lines of the chart, with the cursor in the column that has its moment."""
        columns = self.columns(width)
        ooms = self.ooms[(self.ooms >= self.first) & (self.ooms <= self.end)]
        return draw(columns, height, columns.column_of(self.cursor), ooms)

    def bands(self, width: int) -> list[Text]:
        """Return a line for each lane of the program's ranges."""
        columns = self.columns(width)
        return [draw_bands(columns, lane, columns.column_of(self.cursor)) for lane in self.lanes]

    def most(self, width: int) -> int:
        """Return the bytes at the top of the chart."""
        columns = self.columns(width)
        return max(int(columns.reserved.max()), int(columns.layers.sum(axis=0).max()))

    def sites(self) -> list[SiteRow]:
        """Return the sites with live memory at the cursor: those found by the search first, then by bytes."""
        held = self.timeline.allocations
        live = held.live_at(self.cursor)
        count = len(self._labels)
        nbytes = np.bincount(self._site[live], held.nbytes[live], minlength=count).astype(np.int64)
        blocks = np.bincount(self._site[live], minlength=count)
        found = np.bincount(self._site[live], self._found_stacks[held.stack[live]], minlength=count) > 0
        order = np.lexsort((-nbytes, ~found))
        whole = max(int(nbytes.sum()), 1)
        return [
            SiteRow(
                int(at),
                int(self._layer_of_site[at]),
                int(nbytes[at]),
                int(nbytes[at]) / whole,
                int(blocks[at]),
                self._labels[at],
                bool(found[at]),
            )
            for at in order[:_ROWS]
            if blocks[at]
        ]

    def stack_of_site(self, site: int) -> list[str]:
        """Return the stack of the site's largest allocation that is live at the cursor, innermost frame first."""
        held = self.timeline.allocations
        live = held.live_at(self.cursor)
        own = live[self._site[live] == site]
        if not len(own):
            return []
        largest = int(own[np.argmax(held.nbytes[own])])
        head = [f"{format_bytes(int(held.nbytes[largest]))} at {int(held.address[largest]):#x}", ""]
        return head + self._frames(int(held.stack[largest]))

    def stack_of_entry(self) -> list[str]:
        """Return the stack of the last entry before the cursor, innermost frame first."""
        return self._frames(int(self.snapshot.trace["stack"][self.cursor - 1])) if self.cursor else []

    def _frames(self, stack: int) -> list[str]:
        if stack == NEVER_SEEN:
            return ["allocated before the history begins"]
        rest = self.snapshot.stack(stack)
        frames = [self._frame(frame) for frame in islice(rest, _FRAMES)]
        if more := sum(1 for _ in rest):
            frames.append(f"({more:,} more)")
        return frames or ["no stack was recorded"]

    def _frame(self, frame: Frame) -> str:
        """Return the label of a frame, with its source line if the file is at hand."""
        text = source_line(frame, self.snapshot.taken_at_ns)
        label = label_of(frame).removeprefix(self.folder)
        return f"{label}\n    {text}" if text else label

    def status(self) -> str:
        """Return the line about the cursor: the bytes, the entry, the time, and what it did."""
        timeline, at = self.timeline, self.cursor
        allocated, reserved = int(timeline.allocated[at]), int(timeline.reserved[at])
        sizes = f"allocated {format_bytes(allocated)}, reserved {format_bytes(reserved)}"
        if not at:
            return f"{sizes} · before the first of {self.last:,} entries"
        entry = self.snapshot.trace[at - 1]
        since = format_duration(max(int(timeline.time_ns[at]) - int(timeline.time_ns[0]), 0))
        address = "" if entry["action"] == Action.OOM else f" at {int(entry['address']):#x}"
        done = f"{_WORDS[Action(entry['action'])]} {format_bytes(int(entry['nbytes']))}{address}"
        inside = " > ".join(dict.fromkeys(printable(span.name) for span in self.spans if span.begin < at <= span.end))
        place = f", {inside}" if inside else ""
        return f"{sizes} · entry {at:,} of {self.last:,}, {since}{place}: {done}"

    def title(self) -> str:
        """Return the device, its memory, the peak and the losses of the history."""
        peak = f"peak {format_bytes(int(self.timeline.allocated[self.timeline.peak]))}"
        parts = [label_of_device(self.snapshot), peak]
        if found := len(summary.ooms(self.snapshot)):
            parts.append(f"out of memory {found:,} time{'s' * (found > 1)}")
        if self.snapshot.lost:
            parts.append(f"the first {self.snapshot.lost:,} entries were dropped")
        if "truncated" in self.snapshot.notes:
            parts.append("the file is truncated")
        if not self.last:
            parts.append("no history was recorded")
        return " · ".join(parts)


def label_of_device(snapshot: Snapshot) -> str:
    """Return the name of the device and the size of its memory."""
    memory = f" with {format_bytes(snapshot.capacity)}" if snapshot.capacity else ""
    return printable(snapshot.device) + memory
