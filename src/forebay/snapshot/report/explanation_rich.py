"""An explanation as rich renderables: for the terminal and for text files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forebay.snapshot.report.explanation import Explanation
from forebay.snapshot.report.explanation_text import paragraphs

__all__ = ["number_table", "renderables"]


def renderables(found: Explanation) -> Iterator[RenderableType]:
    """Yield the headings, sentences and tables of an explanation, for `Console.print`."""
    for number, part in enumerate(paragraphs(found)):
        yield Text(part.heading, "bold red" if found.errors and number == 0 else "bold")
        if part.sentences:
            yield Padding.indent(Text(" ".join(part.sentences)), 2)
        if part.line:
            yield ""
            yield Padding.indent(Text(part.line, "green", no_wrap=True, overflow="ignore"), 4)
        yield Padding.indent(number_table(part.columns, part.rows), 1) if part.rows else ""


def number_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> Table:
    """Return a table whose first column is text, and wraps in narrow terminals, and whose others are numbers."""
    cells = [[*row] for row in rows]
    heading = Text(title, "bold") if title else None
    table = Table(box=box.SIMPLE_HEAD, title=heading, title_justify="left")
    for number, name in enumerate(columns):
        words = name.split() if number else ()
        width = max((len(text) for text in [*words, *(row[number] for row in cells)]), default=0) if number else 12
        table.add_column(name, justify="right" if number else "left", overflow="fold", min_width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    return table
