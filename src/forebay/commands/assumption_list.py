"""The list of the lines that received assumed values, for `fit` and `run`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from forebay._base.untrusted import printable

if TYPE_CHECKING:
    from rich.console import Console

    from forebay._base.verdicts import Assumption

__all__ = ["print_assumptions"]

_HEADING = "Assumed values"
_MOST = 20  # lines of the program
_WIDTH = 100  # characters of the text of one


def print_assumptions(console: Console, assumptions: Iterable[Assumption], after: str = "") -> None:
    """Print what lines of the program received in place of values that are not computed, and a sentence after it."""
    from rich.padding import Padding
    from rich.text import Text

    found = [*assumptions]
    if not found:
        return
    console.print(Text(_HEADING, "bold"))
    for each in found[:_MOST]:
        line = each.line.replace(f"{Path.cwd()}/", "")
        shown = line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"
        times = "once" if each.times == 1 else f"{each.times:,} times"
        console.print(Padding.indent(Text(printable(shown), overflow="fold"), 2))
        console.print(Padding.indent(Text(printable(f"{each.text}, {times}"), "dim"), 6))
    if len(found) > _MOST:
        console.print(Padding.indent(Text(f"and {len(found) - _MOST:,} lines more"), 2))
    if after:
        console.print(Padding.indent(Text(after), 2))
