"""`forebay run --shapes-only` changes no files: the program runs with a private overlay, in a process of its own."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.commands import CommandError, run_output
from forebay.errors import ForebayError

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.rehearsal.files_report import FilesReport

_OUTPUT = "FOREBAY_REHEARSAL_OUTPUT"  # the directory of the report, which was made for real
_RECORDS = "FOREBAY_REHEARSAL_RECORDS"  # a folder for the records of the program's processes, no file of its own
_SECTION = "Files"


def rehearse(args: argparse.Namespace, output: Path, written: list[Path]) -> int:
    """Run this command again in a process with a private overlay, and return its status.

    `output` is the directory of the report, and `written` are files that the user named.
    """
    # At their use: `forebay run` without emulated devices needs none of them, and would take a fifth longer.
    from forebay._base.temporary_folders import temporary_folder
    from forebay.commands.run_checks import check_run
    from forebay.rehearsal.caches import download_caches
    from forebay.rehearsal.services import SERVICES, set_environment
    from forebay.rehearsal.supervise import Rehearsal, end_as

    if sys.argv[1:2] != ["run"]:
        raise CommandError("--shapes-only starts the command again, and needs its command line: call `forebay run`")
    folder = output if args.overwrite else run_output.free_directory(output)
    run_output.make_directory(folder)
    folder = folder.resolve()
    os.environ[_OUTPUT] = str(folder)
    set_environment(os.environ)
    caches = download_caches()
    # In a folder with files of the user, which the program may change, only the files of the report become real.
    own = [] if any(folder.iterdir()) else [str(folder)]
    named = {os.path.realpath(each) for each in written}

    def is_written(path: str) -> bool:
        return path in named or run_output.is_of_report(folder, Path(path))

    try:
        with temporary_folder("forebay-run-") as records:
            os.environ[_RECORDS] = str(records)
            real = [*own, str(records), *_monitor_directory(args), *filter(os.path.isdir, caches)]
            rehearsal = Rehearsal(real, is_written, caches, dry=args.dry, services=SERVICES)
            status, report, failed = rehearsal.run([sys.executable, *sys.orig_argv[1:]])
    except (ForebayError, OSError) as error:
        raise CommandError(str(error)) from error
    if not rehearsal.has_reported and not args.quiet:
        _print_short(report)
    if report.full:
        _print(
            f"forebay: error: the private overlay of the program's files is full ({report.full}): let the program "
            "write less, or run it on a machine with more memory"
        )
    for path, reason in failed.items():
        _print(f"forebay: error: cannot create {path!r}: {reason}")
    if args.check_assumptions:
        check_run(args, folder)
    return end_as(status)


def real_output(output: Path) -> Path:
    """Return the directory of the report that `rehearse` has made, in the process that it started."""
    return Path(os.environ.pop(_OUTPUT, "") or output)


def real_records() -> str:
    """Return the folder of records that `rehearse` has made and removes, in the process that it started, or ""."""
    return os.environ.pop(_RECORDS, "")


def print_files(console: Console, report: FilesReport) -> None:
    """Print what happened to files."""
    from rich.padding import Padding
    from rich.text import Text

    from forebay._base.untrusted import printable

    lists = list(report.lists())
    if not lists and not report.sentences():
        return
    console.print(Text(_SECTION, "bold"))
    for sentence in report.sentences():
        console.print(Padding.indent(Text(printable(sentence)), 2))
    for heading, paths in lists:
        console.print(Padding.indent(Text(f"{heading}:"), 2))
        for path in paths:
            console.print(Padding.indent(Text(printable(path), overflow="fold"), 4))
    console.print()


def notes_of(report: FilesReport | None) -> dict[str, object]:
    """Return the notes for the page of the report."""
    if report is None:
        return {}
    return {f"files {heading}": ", ".join(paths) for heading, paths in report.lists()}


def _monitor_directory(args: argparse.Namespace) -> Iterator[str]:
    """Return the directory of the sockets that `forebay top` reads, which other processes must reach."""
    if args.monitor:
        from forebay.observe.monitor import sockets

        with suppress(OSError):
            folder = sockets.directory()
            if folder.is_dir():
                yield str(folder)


def _print_short(report: FilesReport) -> None:
    """Print what happened to files of a program that ended without a report."""
    for sentence in report.sentences():
        _print(f"forebay: {sentence}")
    for heading, paths in replace(report, services=()).lists():  # those that it used are not known
        _print(f"forebay: {heading}: {', '.join(paths)}")


def _print(line: str) -> None:
    from forebay._base.untrusted import printable

    with suppress(OSError, ValueError, AttributeError):  # standard error is closed
        print(printable(line), file=sys.stderr, flush=True)
