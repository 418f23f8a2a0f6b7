"""Find the cards on which a PyTorch program fits.

The program runs once for each card, on an emulated device with the card's memory, in a process of its own. By default
it computes only shapes, so that a model of any size needs little memory and time. A program that reads a value, such as
loss.item(), gets an assumed one: each such line is listed, as the answer is as good as these. With --strict it ends
there. What it prints is discarded, and so are its changes of files: they go to a private overlay, unless
--compute is given. Arguments after SCRIPT are passed to it. The memory of the processes that it starts counts, too.

For each card, the verdict is one of:

fits; tight (it fits, but not with all of what may be outside the allocator on such a card); fits after caught
out-of-memory errors; fits with other settings of the allocator, as a replay of the whole program shows; does not fit;
did not finish (an exception, a signal, a status other than 0, or a value that is not computed: the figures are the
peak so far); no device memory used.

The exit status is 0 if it fits on every card, 3 if it is tight on a card, 1 if it does not fit on a card, or only with
other settings, and 4 if it did not finish on a card or used no device memory. Of several cards, 4 counts before 1, and
1 before 3. It is 2 if the command is wrong.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from forebay._base.byte_sizes import format_bytes
from forebay._base.verdicts import Verdict, exit_status
from forebay.commands import CommandError, command_output, count_argument, reserve_argument, size_argument
from forebay.commands.assumption_list import print_assumptions, print_check
from forebay.commands.assumption_options import add_assumption_options, chosen_assumptions
from forebay.commands.dask_executor import dask_executor
from forebay.commands.run_rehearsal import print_files
from forebay.rehearsal.files_report import merge

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.interop.torch.fit import FitResult, FitTable
    from forebay.interop.torch.program_versions import Versions

_CARDS = "rtx_4090,a100,h100,h200"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "forebay fit [OPTIONS] SCRIPT [ARGS ...]"
    parser.add_argument(
        "--cards", type=_cards, default=_cards(_CARDS), metavar="NAME,...",
        help=f"profiles of the cards, see forebay's page on profiles (default: {_CARDS})",
    )  # fmt: skip
    parser.add_argument("--count", type=count_argument, default=1, metavar="N", help="number of devices (default: 1)")
    parser.add_argument(
        "--memory", type=size_argument, metavar="SIZE", help="memory of each device (default: the profile's)"
    )
    parser.add_argument(
        "--reserve", type=reserve_argument, metavar="SIZE",
        help="memory of each device outside the allocator, such as 512MiB (default: as recorded on such cards)",
    )  # fmt: skip
    parser.add_argument("--settings", default="", metavar="TEXT", help="allocator settings, as in PYTORCH_ALLOC_CONF")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--shapes-only", dest="mode", action="store_const", const="shapes", default="shapes",
        help="compute only shapes (default)",
    )  # fmt: skip
    mode.add_argument(
        "--strict", dest="mode", action="store_const", const="strict",
        help="compute only shapes, and assume no values: a program that reads one did not finish",
    )  # fmt: skip
    mode.add_argument(
        "--compute", dest="mode", action="store_const", const="compute", help="compute the values on the CPU"
    )
    add_assumption_options(parser)
    parser.add_argument("--jobs", type=count_argument, metavar="N", help="runs at a time (default: one per processor)")
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="run on the workers of a Dask scheduler, such as tcp://host:8786"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="SCRIPT [ARGS ...]", help="the program and its arguments"
    )


def run(args: argparse.Namespace) -> int:
    with command_output():
        found = _answer(args)
        versions = _versions(args)
        if args.json:
            valid_for = {"versions": asdict(versions)}
            print(json.dumps([{**each, **valid_for} for each in found.as_json()], indent=2))
        else:
            _print(found, versions)
    return exit_status(each.verdict for each in found)


def _answer(args: argparse.Namespace) -> FitTable:
    from forebay.interop.torch.fit import FitTable
    from forebay.interop.torch.fit.questions import run_tasks
    from forebay.interop.torch.fit.tasks import FitTask

    argv = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not argv:
        raise CommandError("no script to run: forebay fit train.py (see forebay fit --help)")
    if not Path(argv[0]).is_file():
        raise CommandError(f"cannot read the script {argv[0]!r}: there is no such file")
    chosen = chosen_assumptions(args, args.mode)
    script, folder = (str(Path(argv[0]).absolute()), *argv[1:]), str(Path.cwd())
    tasks = [
        FitTask(
            each,
            args.mode,
            args.count,
            args.memory,
            args.settings,
            args.reserve,
            timeout=args.max_seconds,
            script=script,
            folder=folder,
            assumptions=chosen,
            check_assumptions=args.check_assumptions,
        )
        for each in args.cards
    ]
    try:
        with _executor(args) as executor:
            return FitTable(run_tasks(tasks, executor))
    except ValueError as error:
        raise CommandError(str(error)) from error


@contextmanager
def _executor(args: argparse.Namespace) -> Iterator[Executor | None]:
    if args.scheduler is not None:
        with dask_executor(args.scheduler) as executor:
            yield executor
    elif args.jobs is not None:
        with ThreadPoolExecutor(args.jobs) as threads:
            yield threads
    else:
        yield None


def _versions(args: argparse.Namespace) -> Versions:
    """Return the versions that the answer is valid for; other runs of a Dask scheduler have the workers' own."""
    from forebay.interop.torch.program_versions import find_versions

    argv = args.program[1:] if args.program[:1] == ["--"] else args.program
    return find_versions(Path(argv[0]).parent)


def _print(found: FitTable, versions: Versions) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from forebay._base.untrusted import printable
    from forebay.commands.snapshot_files import snapshot_console
    from forebay.snapshot.report.paragraph_rich import number_table

    console = snapshot_console()
    headings, rows = found.columns()
    cells = [
        (*map(printable, row[:-1]), "other settings" if each.settings else printable(row[-1]))
        for row, each in zip(rows, found, strict=True)
    ]
    console.print(number_table(headings, cells, text_columns=(0, 1, len(headings) - 2, len(headings) - 1)))
    _print_outside(console, found, versions)
    for each in found:
        if each.settings:
            console.print(f"{each.profile}: a replay of the whole program fits with these settings:")
            console.print(Padding.indent(Text(printable(each.settings[0]), "green", no_wrap=True), 4))
        for line in _remarks(each):
            text = f"{each.profile}: {line}".replace(f"{Path.cwd()}/", "")
            console.print(Text(printable(text), "red" if not each.fits else ""))
    _print_assumptions(console, found)
    reports = [each.files for each in found if each.files is not None]
    if reports:
        console.print()
        print_files(console, replace(merge(reports), services=()))  # all of them: the worker knows what is used


def _print_outside(console: Console, found: FitTable, versions: Versions) -> None:
    """Print what is outside the allocator of the cards, once for those of one class, and the versions."""
    from rich.text import Text

    cards: dict[tuple[str, str], list[str]] = {}
    for each in found:
        if each.outside.high:
            cards.setdefault((each.outside.text, each.outside.source), []).append(each.profile)
    if cards:
        console.print("Outside the allocator, which nvidia-smi counts, too (--reserve SIZE sets it):")
    for (text, source), names in cards.items():
        console.print(Text(f"  {', '.join(dict.fromkeys(names))}: {text}, {source}"))
    for profile, note in dict.fromkeys((each.profile, each.note) for each in found if each.note):
        console.print(Text(f"{profile}: {note}", "yellow"))
    for line in filter(None, [versions.text, *versions.warnings]):
        console.print(Text(line, "yellow" if line in versions.warnings else ""))


def _print_assumptions(console: Console, found: FitTable) -> None:
    """Print the lines that received assumed values, once for all cards."""
    lines = {line.line: line for each in found for line in each.assumptions}
    if lines:
        console.print()
        print_assumptions(console, lines.values(), choices=found[0].choices)
    for each in found:
        if each.assumption_check is not None:
            print_check(console, each.assumption_check, f"{each.profile}: ")


def _remarks(found: FitResult) -> list[str]:
    """Return what the table does not say about a verdict."""
    if found.verdict is Verdict.DID_NOT_FINISH:
        at = f", at {found.line}" if found.line and found.line not in found.message else ""
        peak = f"{format_bytes(found.peak_allocated)} allocated and {format_bytes(found.peak_reserved)} reserved"
        return [f"{found.verdict}: {found.message.rstrip('.')}{at}. The peak so far is {peak}."]
    return [f"{found.text}: {' '.join(found.reasons)}"] if found.reasons and not found.settings else []


def _cards(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]
