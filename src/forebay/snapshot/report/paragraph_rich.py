"""Paragraphs and tables of numbers as rich renders them: in a terminal, and in text files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forebay.snapshot.report.paragraph import Chart, Paragraph

__all__ = ["number_table", "print_paragraphs"]

_EIGHTHS = "_▁▂▃▄▅▆▇█"
_LEAST = 12  # cells of a column of text
_PARTS = re.compile(r"[^ /\\]+[ /\\]*|[ /\\]+")


def print_paragraphs(console: Console, parts: Iterable[Paragraph], *, alarm: bool = False) -> None:
    """Print paragraphs; `alarm` prints the first heading in red."""
    for number, part in enumerate(parts):
        console.print(Text(part.heading, "bold red" if alarm and number == 0 else "bold"))
        if part.sentences:
            console.print(Padding.indent(Text(" ".join(part.sentences)), 2))
        if part.line:
            console.print()
            console.print(Padding.indent(Text(part.line, "green", no_wrap=True, overflow="ignore"), 4))
        if part.chart is not None:
            console.print(Padding.indent(_bars(part.chart, console.width - 2), 2))
        console.print(Padding.indent(number_table(part.columns, part.rows, part.text_columns), 1) if part.rows else "")


def _bars(chart: Chart, width: int) -> Text:
    """Return the curves as rows of bars, each as high as its most bytes in a part of the axis, in eighths of a cell."""
    names = max(cell_len(name) for name, _ in chart.curves) + 2
    cells = max(min(width - names, len(chart.curves[0][1])), 8)
    lines = []
    for name, values in chart.curves:
        bars = ""
        for cell in range(cells):
            part = values[cell * len(values) // cells : max((cell + 1) * len(values) // cells, 1)]
            known = [nbytes for nbytes in part if nbytes is not None]
            bars += _EIGHTHS[-(-max(known) * 8 // chart.top)] if known else " "
        lines.append(f"{name:{names}}{bars}".rstrip())
    lines.append(" " * names + chart.start + chart.end.rjust(cells - cell_len(chart.start)))
    return Text("\n".join(lines), no_wrap=True, overflow="crop")


def number_table(columns: Sequence[str], rows: Iterable[Sequence[str]], text_columns: Collection[int] = (0,)) -> Table:
    """Return a table of numbers, with some columns of text, which wrap in narrow terminals."""
    cells = [[*row] for row in rows]
    table = Table(box=box.SIMPLE_HEAD)
    for number, name in enumerate(columns):
        if number in text_columns:
            table.add_column(name, min_width=_LEAST)
        else:
            width = max((len(text) for text in [*name.split(), *(row[number] for row in cells)]), default=0)
            table.add_column(name, justify="right", overflow="fold", min_width=width)
    for row in cells:
        table.add_row(*(_Folded(text) if at in text_columns else Text(text) for at, text in enumerate(row)))
    return table


class _Folded:
    """A text that continues on the next line after a space or the end of a folder, if possible."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = max(map(cell_len, self.text.split("\n")))
        return Measurement(min(width, _LEAST), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [line for part in self.text.split("\n") for line in _folded(part, options.max_width)]
        yield Text("\n".join(lines), overflow="fold")


def _folded(text: str, width: int) -> list[str]:
    lines = [""]
    for part in _PARTS.findall(text):
        if cell_len(lines[-1] + part.rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]
