"""Show a snapshot in the terminal: memory over time, and the sites and stacks of any moment.

SNAPSHOT is a forebay snapshot or a PyTorch pickle (torch.cuda.memory._dump_snapshot); no code in it is executed. Left
and right move the cursor, + and - zoom, p and o move to the peak and to out-of-memory events, / searches. Below the
chart are the ranges that the program named (record_function, user_metadata); [ and ] move between its steps. With
--json, the figures, the sites at a moment and the memory over time are printed, without a terminal.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from forebay.commands import CommandError, command_output, count_argument
from forebay.commands.site_options import add_site_options
from forebay.commands.snapshot_files import chosen_devices


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("snapshot", type=Path, metavar="SNAPSHOT", help="the snapshot file")
    parser.add_argument("--device", metavar="NAME", help="show only this device, such as cuda:1")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--moment", type=int, metavar="N",
        help="list the sites after N entries of the history (with --json; default: at the peak)",
    )  # fmt: skip
    parser.add_argument(
        "--rows", type=count_argument, default=20, metavar="N", help="most sites (with --json; default: 20)"
    )
    parser.add_argument(
        "--points", type=count_argument, default=100, metavar="N",
        help="most points of the memory over time (with --json; default: 100)",
    )  # fmt: skip
    add_site_options(parser)


def run(args: argparse.Namespace) -> int:
    if args.json:
        with command_output():
            print(json.dumps(_figures(args), indent=2))
        return 0
    try:
        from forebay.commands.view_app import ViewApp
    except ImportError as error:
        raise CommandError(f"forebay view cannot start: {error} (pip install 'forebay[top]')") from error
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("forebay view needs a terminal; view --json, explain and report do not")
    with command_output():
        snapshots = chosen_devices(args)
        if not snapshots:
            raise CommandError(f"{str(args.snapshot)!r} has no device")
    ViewApp(snapshots, args.snapshot.name).run()
    return 0


def _figures(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the figures of each device that was used."""
    from forebay.snapshot.report.figures import device_figures

    try:
        return [
            device_figures(each, moment=args.moment, rows=args.rows, points=args.points)
            for each in chosen_devices(args)
        ]
    except ValueError as error:
        raise CommandError(str(error)) from error
