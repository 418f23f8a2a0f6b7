"""The result of `forebay fit` in the terminal: a table as wide as it, and below what has no room or needs sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from forebay._base.outside_memory import workspaces_of_cudnn
from forebay._base.untrusted import printable
from forebay._base.verdicts import Verdict
from forebay.commands.assumption_list import print_assumptions, print_check
from forebay.commands.kernel_list import print_kernels
from forebay.commands.run_rehearsal import print_files
from forebay.rehearsal.files_report import merge

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.interop.torch.fit import FitResult, FitTable
    from forebay.interop.torch.fit.results import Column
    from forebay.interop.torch.program_versions import Versions

__all__ = ["print_fit"]

_GAP = 2  # characters between columns


def print_fit(found: FitTable, mode: str, versions: Versions) -> None:
    """Print the results, after the sentence about the mode, with the versions for which they are valid."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)  # as wide as the terminal; 80 characters, or COLUMNS, if it is none
    console.print(Text(mode))
    console.print()
    shown, hidden = _columns(found.shown_columns(), found, console.width)
    _print_table(console, shown, found)
    console.print()
    for column in hidden:
        for results, text in _by_text((each, column.below(each)) for each in found):
            console.print(Text(printable(f"{_names(results)}: {text}")))
    _print_outside(console, found)
    for line in filter(None, [versions.text, *versions.warnings]):
        console.print(Text(printable(line), "yellow" if line in versions.warnings else ""))
    for each in found:
        if each.settings:
            console.print(Text(printable(f"{each.profile}: a replay of the whole program fits with these settings:")))
            console.print(Padding.indent(Text(printable(each.settings[0]), "green", no_wrap=True), 4))
    for results, text in _by_text((each, _remark(each)) for each in found):
        style = "" if all(each.fits for each in results) else "red"
        console.print(Text(printable(f"{_names(results)}: {text}"), style))
    _print_assumptions(console, found)
    for each in found:
        if each.kernels is not None:
            console.print()
            print_kernels(console, each.kernels, f"{each.profile}: ")
    reports = [each.files for each in found if each.files is not None]
    if reports:
        console.print()
        print_files(console, replace(merge(reports), services=()))  # all of them: the worker knows what is used


def _columns(columns: Sequence[Column], found: FitTable, width: int) -> tuple[list[Column], list[Column]]:
    """Return the columns that have room, and those that have none: the least important ones, and empty ones in none."""
    shown = [each for each in columns if any(map(each.cell, found)) or not each.rank]
    hidden: list[Column] = []
    while sum(_width(each, found) for each in shown) + _GAP * (len(shown) - 1) > width and any(
        each.rank for each in shown
    ):
        least = max(shown, key=lambda each: each.rank)
        shown.remove(least)
        hidden.append(least)
    return shown, hidden


def _width(column: Column, found: FitTable) -> int:
    return max(len(column.heading), *(min(len(_cell(column, each)), column.widest) for each in found), 0)


def _print_table(console: Console, columns: Sequence[Column], found: FitTable) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0), collapse_padding=True)
    for column in columns:
        table.add_column(
            column.heading, justify="right" if column.is_number else "left", overflow="fold",
            max_width=column.widest, no_wrap=column.is_number or column is columns[0],
        )  # fmt: skip
    for each in found:
        table.add_row(*(Text(printable(_cell(column, each))) for column in columns))
    console.print(table)


def _cell(column: Column, found: FitResult) -> str:
    return "other settings" if column.heading == "needs" and found.settings else column.cell(found)  # printed below


def _by_text(pairs: Iterable[tuple[FitResult, str]]) -> list[tuple[list[FitResult], str]]:
    """Return the results that have the same text, and the text: an error of all cards is printed once."""
    found: dict[str, list[FitResult]] = {}
    for result, text in pairs:
        if text:
            found.setdefault(text.replace(f"{Path.cwd()}/", ""), []).append(result)
    return [(results, text) for text, results in found.items()]


def _names(results: Iterable[FitResult]) -> str:
    return ", ".join(dict.fromkeys(each.profile for each in results))


def _remark(found: FitResult) -> str:
    """Return what the table does not say about a verdict."""
    if found.verdict is Verdict.DID_NOT_FINISH:
        at = f", at {found.line}" if found.line and found.line not in found.message else ""
        return f"{found.text}: {found.message.rstrip('.')}{at}. The figures are the peak so far."
    return f"{found.text}: {' '.join(found.reasons)}" if found.reasons and not found.settings else ""


def _print_outside(console: Console, found: FitTable) -> None:
    """Print what is outside the allocator, once for the cards of one class, and what is to be known of cards."""
    from rich.text import Text

    texts = [(each, f"{each.outside.text}, {each.outside.source}" if each.outside.high else "") for each in found]
    if any(text for _, text in texts):
        console.print("Outside the allocator, which nvidia-smi counts, too (--reserve SIZE sets it):")
    for results, text in _by_text(texts):
        _print_item(console, f"{_names(results)}: {text}")
    workspaces = [(each, workspaces_of_cudnn(each.workspaces)) for each in found]
    if source := next((estimated.source for _, estimated in workspaces if estimated.high), ""):
        console.print(Text(f"cuDNN workspaces (estimated), which the allocator reserves besides: {source}:"))
    for results, text in _by_text((each, estimated.text if estimated.high else "") for each, estimated in workspaces):
        _print_item(console, f"{_names(results)}: {text}")
    for results, note in _by_text((each, each.note) for each in found):
        console.print(Text(printable(f"{_names(results)}: {note}"), "yellow"))


def _print_item(console: Console, text: str) -> None:
    """Print an item of a list, whose further lines are indented more."""
    from textwrap import fill

    console.print(fill(printable(text), console.width, initial_indent="  ", subsequent_indent="    "), markup=False)


def _print_assumptions(console: Console, found: FitTable) -> None:
    """Print the lines that received assumed values, once for all cards."""
    lines = {line.line: line for each in found for line in each.assumptions}
    if lines:
        console.print()
        print_assumptions(console, lines.values(), choices=found[0].choices)
    for each in found:
        if each.assumption_check is not None:
            print_check(console, each.assumption_check, f"{each.profile}: ")
