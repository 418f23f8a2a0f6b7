"""Paragraphs and tables of numbers as rich renders them: in a terminal, and in text files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forebay.snapshot.report.paragraph import Paragraph

__all__ = ["number_table", "print_paragraphs"]


def print_paragraphs(console: Console, parts: Iterable[Paragraph], *, alarm: bool = False) -> None:
    """Print paragraphs; `alarm` prints the first heading in red."""
    for number, part in enumerate(parts):
        console.print(Text(part.heading, "bold red" if alarm and number == 0 else "bold"))
        if part.sentences:
            console.print(Padding.indent(Text(" ".join(part.sentences)), 2))
        if part.line:
            console.print()
            console.print(Padding.indent(Text(part.line, "green", no_wrap=True, overflow="ignore"), 4))
        console.print(Padding.indent(number_table(part.columns, part.rows, part.text_columns), 1) if part.rows else "")


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
