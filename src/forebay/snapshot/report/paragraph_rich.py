"""Paragraphs and tables of numbers as rich renders them: in a terminal, and in text files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forebay.snapshot.report.paragraph import Chart, Paragraph

__all__ = ["number_table", "print_paragraphs"]

_EIGHTHS = "_▁▂▃▄▅▆▇█"


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
            table.add_column(name, overflow="fold", min_width=12)
        else:
            width = max((len(text) for text in [*name.split(), *(row[number] for row in cells)]), default=0)
            table.add_column(name, justify="right", overflow="fold", min_width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    return table
