"""Show the devices and the memory of running programs, live.

The view lists each device of each program of the user that was started by forebay run, and the GPUs of the machine.
The arrow keys select a device, whose call sites are listed below. With --once, one table is printed instead, which
needs no terminal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from forebay.commands import CommandError, command_output
from forebay.commands.site_options import add_site_options, chosen_sites

if TYPE_CHECKING:
    from forebay.observe.monitor.machine import MachineFigures
    from forebay.records.site_choice import SiteChoice

_STACKS = 5000
_RATE_SECONDS = 0.5  # between the two readings from which --once computes rates
_INTERVAL = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pid", type=_pid, action="append", metavar="PID", help="show this process only; can be repeated"
    )
    parser.add_argument(
        "--interval", type=_seconds, default=_INTERVAL, metavar="SECONDS",
        help=f"time between two readings (default: {_INTERVAL:g})",
    )  # fmt: skip
    parser.add_argument("--once", action="store_true", help="print the figures once and exit")
    parser.add_argument("--json", action="store_true", help="print the figures once, as JSON")
    add_site_options(parser)


def run(args: argparse.Namespace) -> int:
    choice = chosen_sites(args)
    if args.json or args.once:
        with command_output():
            first = read(args.pid, choice)
            _check(first, args.pid)
            if args.json:
                from forebay.commands.top_sites import as_json

                print(json.dumps(as_json(first), indent=2))
            else:
                from forebay.commands.top_table import print_figures

                time.sleep(_RATE_SECONDS)
                print_figures(first, read(args.pid, choice))
        return 0
    try:
        from forebay.commands.top_view import TopView
    except ImportError as error:
        raise CommandError(f"forebay top cannot start: {error} (pip install 'forebay[top]', or --once)") from error
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("forebay top needs a terminal; --once or --json prints the figures once")
    _check(read(args.pid, choice), args.pid)
    TopView(lambda selected: read(args.pid, choice, selected), args.interval).run()
    return 0


def read(pids: list[int] | None, choice: SiteChoice, sites_of: int | None = None) -> MachineFigures:
    """Return the figures, with the call sites of one process or of all.

    Raises CommandError if the directory of the sockets cannot be used.
    """
    from forebay.commands.top_sites import with_sites
    from forebay.observe.monitor.machine import read_machine

    try:
        return with_sites(read_machine(pids, _STACKS, sites_of), choice)
    except OSError as error:
        raise CommandError(f"cannot find running programs: {error}") from error


def _check(found: MachineFigures, pids: list[int] | None) -> None:
    """Raise CommandError for requested processes that did not reply."""
    if pids and found.failures:
        raise CommandError("; ".join(f"process {pid}: {text}" for pid, text in found.failures.items()))


def _pid(text: str) -> int:
    if text.isdecimal() and 0 < int(text) < 1 << 31:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a process id")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if 0.1 <= value <= 3600:
        return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
