"""Named ranges of a program in the cells of a terminal, below the chart of memory over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from forebay._base.untrusted import printable
from forebay.snapshot.analysis.spans import Span, step_stem
from forebay.snapshot.report.terminal_chart import ChartColumns

__all__ = ["draw_bands"]

_STYLES = (
    ("#101820 on #a9c6e8", "#101820 on #86b0de"),
    ("#101820 on #f3c89b", "#101820 on #eab373"),
    ("#101820 on #bfe0b5", "#101820 on #9fd191"),
    ("#101820 on #e6bcd9", "#101820 on #d99ec6"),
)
_CURSOR = "bold white on #5c6675"


def draw_bands(columns: ChartColumns, lane: Sequence[Span], cursor: int) -> Text:
    """Return the line of one lane: spans that do not overlap. `cursor` is a column.

    A span has the columns whose moments it has. Of two spans in one column the first is drawn; a span that has no
    column for itself is not drawn.
    """
    width = len(columns.starts)
    first, last = int(columns.starts[0]), int(columns.starts[-1])
    cells: list[tuple[int, int, Span]] = []
    taken = 0
    for span in lane:
        if span.end < first or span.begin > last or span.end == span.begin:
            continue
        begin = max(int(np.searchsorted(columns.starts, span.begin, "left")), taken)
        end = int(np.searchsorted(columns.starts, span.end, "left"))
        if end > begin:
            cells.append((begin, end, span))
            taken = end
    line, at, shade = Text(no_wrap=True, overflow="crop", end=""), 0, 0
    names = {stem: number for number, stem in enumerate(dict.fromkeys(step_stem(span.name) for span in lane))}
    for begin, end, span in cells:
        # Steps follow one another without a gap: two shades of a color tell them apart.
        shade = 1 - shade if begin == at else 0
        line.append(" " * (begin - at))
        line.append(_fitted(span, end - begin), _STYLES[names[step_stem(span.name)] % len(_STYLES)][shade])
        at = end
    line.append(" " * (width - at))
    line.stylize(_CURSOR, cursor, cursor + 1)
    return line


def _fitted(span: Span, width: int) -> str:
    """Return the name of a span in a number of cells: all of it, its number, or its beginning."""
    name = printable(span.name)
    if cell_len(name) > width and span.number is not None:
        name = f"#{span.number}" if len(str(span.number)) < width else str(span.number)
        name = name if len(name) <= width else ""
    elif cell_len(name) > width:
        name = set_cell_size(name, width - 1) + "…" if width > 2 else ""
    return set_cell_size(name, width)
