"""The ranges that the program named, as the page draws them: bands below the chart, and their memory by name."""

from __future__ import annotations

from forebay._base.untrusted import printable, shortened
from forebay.snapshot.analysis.range_use import range_use
from forebay.snapshot.analysis.spans import Kind, lanes, spans, step_stem
from forebay.snapshot.report.page.columns import Columns
from forebay.snapshot.report.page.view import View

__all__ = ["add_bands"]

_LANES = 6
_MAX_SPANS, _MAX_RANGES = 20_000, 200  # on a page
_MAX_NAME = 200
_COLORS = 6
_KINDS = [*Kind]


def add_bands(view: View, columns: Columns) -> tuple[list[str], list[str]]:
    """Add the columns of the spans and of their use by name; return the names that both refer to."""
    found = spans(view.snapshot)
    first = int(view.timeline.time_ns[0])
    rows = [(span, lane) for lane, row in enumerate(lanes(found, _LANES)) for span in row][:_MAX_SPANS]
    names = {name: number for number, name in enumerate(dict.fromkeys(span.name for span, _ in rows))}
    stems = {stem: number for number, stem in enumerate(dict.fromkeys(step_stem(name) for name in names))}
    for field in ("begin", "end"):
        columns.add(f"span.{field}", [getattr(span, field) for span, _ in rows])
        columns.add(f"span.{field}_ns", [getattr(span, f"{field}_ns") - first for span, _ in rows])
    columns.add("span.name", [names[span.name] for span, _ in rows])
    columns.add("span.kind", [_KINDS.index(span.kind) for span, _ in rows])
    columns.add("span.lane", [lane for _, lane in rows])
    columns.add("span.color", [stems[step_stem(span.name)] % _COLORS for span, _ in rows])
    uses = range_use(view.snapshot, view.timeline, found)[:_MAX_RANGES]
    columns.add("range.name", range(len(uses)))
    columns.add("range.times", [use.count for use in uses])
    for name in ("peak", "at", "allocated"):
        columns.add(f"range.{name}", [getattr(use, name) for use in uses])
    columns.add("range.growth", [round(use.change) for use in uses])
    return [*map(_shown, names)], [_shown(use.name) for use in uses]


def _shown(name: str) -> str:
    return printable(shortened(name, _MAX_NAME))
