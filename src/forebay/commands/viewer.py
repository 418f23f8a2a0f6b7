"""Write a page for the browser into which memory snapshots are dropped: nothing needs to be installed to open it.

A file that is dropped on the page is read there, without a request: PyTorch pickles
(torch.cuda.memory._dump_snapshot), also compressed by gzip, and snapshots that forebay wrote. The page shows what
`forebay report` writes: allocations over time, sites, a flame graph, segments at any moment. It names the commands for
what needs the allocator: the effect of other settings and of changes to the program.
"""

from __future__ import annotations

import argparse
from io import TextIOWrapper
from pathlib import Path

from forebay.commands import CommandError, command_output
from forebay.commands.output_files import add_overwrite, check_output

DEFAULT_OUTPUT = "viewer.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", dest="page", type=Path, default=Path(DEFAULT_OUTPUT), metavar="PAGE",
        help=f"the page to write; an earlier page is replaced (default: {DEFAULT_OUTPUT})",
    )  # fmt: skip
    add_overwrite(parser)
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


def run(args: argparse.Namespace) -> int:
    check_output(args.page, [], "--output", overwrite=args.overwrite)
    _write(args.page)
    with command_output():
        print(args.page)
    if args.open:
        import webbrowser

        if not webbrowser.open(args.page.absolute().as_uri()):
            raise CommandError("no browser could be started; open the page manually")
    return 0


def _write(output: Path) -> None:
    from forebay._base.atomic_write import atomic_write
    from forebay.snapshot.report.page import viewer

    try:
        with atomic_write(output) as file:
            text = TextIOWrapper(file, encoding="utf-8")
            viewer.write(text)
            text.detach()  # otherwise it would close the file
    except OSError as error:
        raise CommandError(f"cannot write the page {str(output)!r}: {error.strerror or error}") from error
