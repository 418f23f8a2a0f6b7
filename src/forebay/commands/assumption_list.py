"""The list of the lines that received assumed values, for `fit` and `run`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from forebay._base.untrusted import printable, shortened

if TYPE_CHECKING:
    from rich.console import Console

    from forebay._base.assumption_checks import AssumptionCheck
    from forebay._base.assumption_choices import AssumptionChoices
    from forebay._base.verdicts import Assumption

__all__ = ["print_assumptions", "print_check"]

_HEADING = "Assumed values"
_MOST = 20  # lines of the program
_INDENT = 2


def print_assumptions(
    console: Console, assumptions: Iterable[Assumption], after: str = "", *, choices: AssumptionChoices | None = None
) -> None:
    """Print what lines of the program received in place of values that are not computed, and a sentence after it."""
    from rich.padding import Padding
    from rich.text import Text

    found = [*assumptions]
    if not found:
        return
    chosen = choices.in_words() if choices is not None else ""
    console.print(Text(f"{_HEADING} ({chosen})" if chosen else _HEADING, "bold"))
    for each in found[:_MOST]:
        shown = shortened(_relative(each.line), max(20, console.width - _INDENT))  # one row of the terminal
        times = "once" if each.times == 1 else f"{each.times:,} times"
        console.print(Padding.indent(Text(printable(shown), overflow="fold"), _INDENT))
        console.print(Padding.indent(Text(printable(f"{each.text}, {times}"), "dim"), 3 * _INDENT))
    if len(found) > _MOST:
        console.print(Padding.indent(Text(f"and {len(found) - _MOST:,} lines more"), _INDENT))
    if after:
        console.print(Padding.indent(Text(after), _INDENT))


def print_check(console: Console, check: AssumptionCheck, name: str = "") -> None:
    """Print whether the peak depends on the assumed values; `name` is that of the card."""
    from rich.padding import Padding
    from rich.text import Text

    first, *lines = check.sentences()
    console.print(Text(printable(_relative(f"{name}{first}")), "bold" if check.depends is not False else ""))
    for each in lines:
        console.print(Padding.indent(Text(printable(_relative(each)), overflow="fold"), _INDENT))


def _relative(line: str) -> str:
    """Return a line with names of files below the working directory."""
    return line.replace(f"{Path.cwd()}/", "")
