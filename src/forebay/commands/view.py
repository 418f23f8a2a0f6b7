"""Show a snapshot in the terminal: memory over time, and the sites and stacks of any moment.

SNAPSHOT is a forebay snapshot or a PyTorch pickle (torch.cuda.memory._dump_snapshot); no code in it is executed. Left
and right move the cursor, + and - zoom, p and o move to the peak and to out-of-memory events, / searches.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from forebay.commands import CommandError, command_output
from forebay.commands.site_options import add_site_options, chosen_sites
from forebay.commands.snapshot_files import load_snapshots, used_devices


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("snapshot", type=Path, metavar="SNAPSHOT", help="the snapshot file")
    add_site_options(parser)


def run(args: argparse.Namespace) -> int:
    try:
        from forebay.commands.view_app import ViewApp
    except ImportError as error:
        raise CommandError(f"forebay view cannot start: {error} (pip install 'forebay[top]')") from error
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("forebay view needs a terminal; forebay explain and forebay report do not")
    with command_output():
        snapshots = load_snapshots(args.snapshot, chosen_sites(args))
        if not snapshots:
            raise CommandError(f"{str(args.snapshot)!r} has no device")
    ViewApp(used_devices(snapshots), args.snapshot.name).run()
    return 0
