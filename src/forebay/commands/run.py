"""Run a Python program on the host device, and show where its memory went.

NumPy's arrays live in the host device's memory while the program runs; it cannot tell otherwise. Everything after
SCRIPT or MODULE is the program's own. At the end the report is shown on standard error, and two files are written to
the output directory: snapshot.forebay and report.html. The exit status is the program's. A program that ends with
os._exit, os.exec* or by a signal other than Ctrl-C leaves no report.

With --emulate this machine stands in for devices of another kind, in the program and in all processes that it starts.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from forebay.commands import Failure, size
from forebay.commands.run_session import Recording
from forebay.commands.script_runner import Program
from forebay.config import EMULATE, Emulated, parse_emulated

OUTPUT = Path("forebay-report")
ENTRIES = 1_000_000


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "forebay run [OPTIONS] SCRIPT [ARGS ...]\n       forebay run [OPTIONS] -m MODULE [ARGS ...]"
    parser.add_argument(
        "--emulate", type=_emulated, metavar="KIND[:COUNT][@PROFILE]",
        help="let this machine stand in for such devices, as in cuda:2@h200",
    )  # fmt: skip
    parser.add_argument(
        "--guard", action="store_true",
        help="with --emulate: a program that touches their memory outside queued work dies, and shows the line",
    )  # fmt: skip
    parser.add_argument("--memory", type=size, metavar="SIZE", help="the host device's capacity, as in 512MiB or 2G")
    parser.add_argument(
        "--history", action=argparse.BooleanOptionalAction, default=True,
        help="record every allocation with its Python stack, or only totals",
    )  # fmt: skip
    parser.add_argument(
        "--entries", type=_count, default=ENTRIES, metavar="N", help=f"how much history to keep (default: {ENTRIES:,})"
    )
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, metavar="DIR", help=f"where the files go (default: {OUTPUT})"
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a trace of what queues did, for ui.perfetto.dev"
    )
    parser.add_argument("--open", action="store_true", help="show the report in a browser")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m does")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="SCRIPT [ARGS ...]", help="the program")


def run(args: argparse.Namespace) -> int:
    argv = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not argv:
        what = "module" if args.module else "script"
        raise Failure(f"no {what} to run: forebay run {'-m MODULE' if args.module else 'train.py'}")
    program = Program(argv, module=args.module)
    recording = Recording(_absolute(args.output), argv, args.memory, args.entries if args.history else None, args.open)
    recording.prepare()
    trace = None if args.trace is None else _absolute(args.trace)
    _emulate(args.emulate, guard=args.guard)
    recording.start()
    if trace is not None:
        recording.start_trace(trace)
    try:
        program.execute()
    except Failure:
        recording.cancel()
        raise
    except KeyboardInterrupt:
        recording.interrupted = True
        raise
    return 0


def _emulate(asked: tuple[Emulated, ...] | None, *, guard: bool) -> None:
    """By the environment, which the program's children inherit."""
    if asked is None:
        if guard:
            raise Failure("--guard is for emulated devices: say which, as in --emulate cuda:2@h200 --guard")
        return
    from forebay import backends  # now that it is known to load

    for each in asked:
        try:
            with backends.emulating(each.kind, each.count, each.profile):
                pass
        except ValueError as error:
            raise Failure(f"--emulate: {error}") from error
    os.environ[EMULATE.name] = ",".join(str(replace(each, guard=each.guard or guard)) for each in asked)


def _emulated(text: str) -> tuple[Emulated, ...]:
    try:
        return parse_emulated(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _absolute(folder: Path) -> Path:
    try:
        return folder.absolute()
    except OSError as error:
        raise Failure(f"the working directory is gone, so {str(folder)!r} is nowhere: {error.strerror}") from error


def _count(text: str) -> int:
    if text.replace("_", "").isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
