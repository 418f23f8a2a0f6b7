"""Answer the questions of agents about snapshots: a server of the Model Context Protocol on standard input and output.

The tools are open, sites, timeline, explain, tune and diff. They read files below FOLDER only and change nothing; each
answer names the command that repeats it. With --programs, the tool fit runs programs below FOLDER, whose code can do
what you can do. It needs the package mcp: pip install 'forebay[mcp]'.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from forebay.commands import CommandError, command_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path(), metavar="FOLDER",
        help="the folder whose files can be read (default: the current one)",
    )  # fmt: skip
    parser.add_argument("--programs", action="store_true", help="also run programs of the folder, for the tool fit")


def run(args: argparse.Namespace) -> int:
    folder = args.folder.absolute()
    if not folder.is_dir():
        raise CommandError(f"{str(args.folder)!r} is not a folder")
    try:
        from forebay.commands.mcp_server import make_server
    except ImportError as error:
        raise CommandError(f"forebay mcp cannot start: {error} (pip install 'forebay[mcp]')") from error
    with command_output():
        make_server(folder, programs=args.programs).run("stdio")
    return 0
