"""The markup of objects that a notebook displays: `_repr_html_` of tensors, devices, statistics and snapshots.

Text enters the markup only through `escape_text`. All styles are inline, and the colors are the page's own or readable
on a light and on a dark one; there are no scripts, no classes and no requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NewType

from forebay._base.untrusted import printable, shortened

__all__ = ["BLUE", "RED", "Html", "box", "escape_text", "facts", "figure", "note", "preformatted", "table"]

Html = NewType("Html", str)  # text that is markup already

BLUE, RED = "#4a90d9", "#d9534f"  # contrast of at least 3 with white and with black

_MAX_TEXT = 2000  # characters; names from programs and files may have millions
_LINE = "1px solid rgba(128,128,128,.4)"
_CELL = "border:0;background:transparent;padding:1px 16px 1px 0;vertical-align:top;font-size:13px;line-height:1.45"


def escape_text(text: str) -> Html:
    """Escape text for HTML, with unprintable characters as escape sequences. The middle of a long text is left out."""
    return Html(escape(printable(shortened(text, _MAX_TEXT))))


def box(title: str, *parts: Html) -> Html:
    """Return an object's markup: its title and parts, inside a thin frame."""
    heading = f'<div style="font-weight:600;overflow-wrap:anywhere">{escape_text(title)}</div>'
    style = f"display:inline-block;max-width:100%;box-sizing:border-box;border:{_LINE};border-radius:6px"
    return Html(f'<div style="{style};padding:8px 12px;margin:2px 0;font-size:13px">{heading}{"".join(parts)}</div>')


def facts(pairs: Iterable[tuple[str, str]]) -> Html:
    """Return names and values, one pair in each row; "" without pairs."""
    rows = "".join(
        f'<tr style="background:transparent"><th style="{_CELL};text-align:left;font-weight:400;opacity:.7">'
        f'{escape_text(name)}</th><td style="{_CELL};text-align:left;overflow-wrap:anywhere">{escape_text(value)}</td>'
        "</tr>"
        for name, value in pairs
    )
    return _table(rows) if rows else Html("")


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """Return a table whose first column is text and whose other columns are numbers; "" without rows."""

    def line(cells: Sequence[str], tag: str, style: str) -> str:
        sides = ["left", *["right"] * (len(cells) - 1)]
        return "".join(
            f'<{tag} style="{_CELL};text-align:{side};{style}">{escape_text(cell)}</{tag}>'
            for side, cell in zip(sides, cells, strict=True)
        )

    body = "".join(
        f'<tr style="background:transparent">{line(row, "td", "font-variant-numeric:tabular-nums")}</tr>'
        for row in rows
    )
    head = f"<tr>{line(names, 'th', f'font-weight:400;opacity:.7;border-bottom:{_LINE}')}</tr>"
    return _table(head + body) if body else Html("")


def note(text: str) -> Html:
    """Return a paragraph in a lighter color."""
    return Html(f'<div style="opacity:.7;max-width:90ch;margin:2px 0">{escape_text(text)}</div>')


def preformatted(text: str) -> Html:
    """Return lines in a font of equal widths. Only each line is made printable, and no line is left out."""
    lines = "\n".join(escape(printable(line)) for line in text.split("\n"))
    style = "margin:4px 0 0;padding:0;overflow-x:auto;white-space:pre;font:12px/1.35 ui-monospace,monospace"
    return Html(f'<pre style="{style};color:inherit;background:transparent;border:0">{lines}</pre>')


def figure(caption: str, width: int, height: int, drawing: str) -> Html:
    """Return an SVG of `width` by `height` units, which shrinks with the page. `drawing` is markup."""
    style = f"display:block;width:{width}px;max-width:100%;height:auto;color:inherit;margin:6px 0"
    return Html(
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape_text(caption)}" '
        f'viewBox="0 0 {width} {height}" style="{style}" font-family="system-ui, sans-serif" font-size="11">'
        f"{drawing}</svg>"
    )


def _table(rows: str) -> Html:
    return Html(f'<table style="border-collapse:collapse;border:0;margin:4px 0 0">{rows}</table>')
