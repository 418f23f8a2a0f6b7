"""Chart of memory over time in the cells of a terminal: stacked layers, the reserved bytes, and a cursor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from forebay.snapshot.analysis.timeline import Timeline

__all__ = ["COLORS", "ChartColumns", "chart_columns", "draw"]

COLORS = ("#4e79a7", "#f28e2b", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#9c755f", "#8a8f98")  # the last: others
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_RESERVED, _OOM, _CURSOR = "bold #e15759", "bold red", "on #5c6675"


@dataclass(frozen=True, slots=True, eq=False)
class ChartColumns:
    """The columns of a chart, each of which shows a range of moments by the one with the most allocated bytes."""

    # First moment of each column. With fewer moments than columns, several columns show the same one.
    starts: NDArray[np.int64]
    moments: NDArray[np.int64]  # the moment that each column shows
    layers: NDArray[np.int64]  # allocated bytes at these moments, one row for each layer, the lowest first
    reserved: NDArray[np.int64]  # most reserved bytes in the range of each column

    def column_of(self, moment: int) -> int:
        """Return the first column that shows a moment, or whose range has it."""
        later = int(np.searchsorted(self.starts, moment, side="right")) - 1
        return int(np.searchsorted(self.starts, self.starts[max(later, 0)], side="left"))


def chart_columns(
    timeline: Timeline, layer: NDArray[np.int64], layers: int, first: int, last: int, width: int
) -> ChartColumns:
    """Return `width` columns for the moments from `first` to `last`. `layer` is the layer of each allocation."""
    starts = np.linspace(first, last + 1, width, endpoint=False).astype(np.int64)
    ends = np.maximum(np.append(starts[1:], last + 1), starts + 1)
    allocated, reserved = timeline.allocated, timeline.reserved
    moments = np.array(
        [start + int(np.argmax(allocated[start:end])) for start, end in zip(starts, ends, strict=True)], np.int64
    )
    held, row = timeline.allocations, width + 1
    change = np.zeros(layers * row, np.int64)
    # Moments ascend. An allocation is in the columns from the first moment at or after its start, to that of its end.
    np.add.at(change, layer * row + np.searchsorted(moments, held.start), held.nbytes)
    np.subtract.at(change, layer * row + np.searchsorted(moments, held.end), held.nbytes)
    return ChartColumns(
        starts=starts,
        moments=moments,
        layers=np.cumsum(change.reshape(layers, row), axis=1)[:, :-1],
        reserved=np.array([reserved[start:end].max() for start, end in zip(starts, ends, strict=True)], np.int64),
    )


def draw(columns: ChartColumns, height: int, cursor: int, ooms: NDArray[np.int64]) -> list[Text]:
    """Return the lines of the chart, from the top. `cursor` is a column; `ooms` are moments of failed requests."""
    totals = np.cumsum(columns.layers, axis=0)
    top = max(int(columns.reserved.max(initial=0)), int(totals[-1].max(initial=0)), 1)
    filled = totals[-1] / top * height  # in cells
    level = np.minimum(columns.reserved * height // top, height - 1)
    failed = {columns.column_of(int(moment)) for moment in ooms if columns.starts[0] <= moment}
    lines = []
    for row in range(height - 1, -1, -1):
        line = Text(no_wrap=True, overflow="crop", end="")
        for column in range(len(columns.starts)):
            style = _CURSOR if column == cursor else ""
            part = min(max(float(filled[column]) - row, 0.0), 1.0)
            if row == height - 1 and column in failed:
                line.append("✖", f"{_OOM} {style}")
            elif part > 1 / 16:
                middle = (row + part / 2) * top / height
                layer = min(int(np.searchsorted(totals[:, column], middle)), len(COLORS) - 1)
                line.append(_EIGHTHS[max(round(part * 8), 1)], f"{COLORS[layer]} {style}")
            elif row == level[column]:
                line.append("─", f"{_RESERVED} {style}")
            else:
                line.append(" ", style)
        lines.append(line)
    return lines
