"""Compare two snapshots: the memory that grew, by allocation site, at the peak and at the end.

BEFORE and AFTER are forebay snapshots or PyTorch pickles; no code in them is executed. Allocations are matched by their
stacks, and where that fails, without line numbers and folders.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.commands import CommandError, command_output, count_argument
from forebay.commands.output_files import add_overwrite, check_output
from forebay.commands.site_options import add_site_options, chosen_sites
from forebay.commands.snapshot_files import load_snapshots, snapshot_console, write_page

if TYPE_CHECKING:
    from forebay.snapshot import Snapshot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("snapshot", type=Path, metavar="BEFORE", help="the first snapshot file")
    parser.add_argument("other_snapshot", type=Path, metavar="AFTER", help="the second snapshot file")
    parser.add_argument("--rows", type=int, default=15, metavar="N", help="most sites in a table (default: 15)")
    parser.add_argument(
        "--stacks", type=count_argument, default=0, metavar="DEPTH",
        help="compare call stacks, too: those with the same DEPTH innermost frames are one",
    )  # fmt: skip
    parser.add_argument("--html", type=Path, metavar="FILE", help="write an HTML page instead")
    add_overwrite(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_site_options(parser)


def run(args: argparse.Namespace) -> int:
    from forebay.snapshot.analysis.comparison import compare
    from forebay.snapshot.report.comparison_text import comparison_paragraphs

    with command_output():
        check_output(args.html, [args.snapshot, args.other_snapshot], "--html", overwrite=args.overwrite)
        choice = chosen_sites(args)
        pairs = _pairs(load_snapshots(args.snapshot, choice), load_snapshots(args.other_snapshot, choice), args)
        found = [compare(before, after, depth=args.stacks) for before, after in pairs]
        if args.json:
            print(json.dumps([asdict(each) for each in found], indent=2))
            return 0
        parts = [part for each in found for part in comparison_paragraphs(each, rows=max(args.rows, 1))]
        if args.html is not None:
            write_page(args.html, f"{args.snapshot.name} and {args.other_snapshot.name}", parts)
            print(args.html)
        else:
            from forebay.snapshot.report.paragraph_rich import print_paragraphs

            print_paragraphs(snapshot_console(), parts)
    return 0


def _pairs(
    before: tuple[Snapshot, ...], after: tuple[Snapshot, ...], args: argparse.Namespace
) -> list[tuple[Snapshot, Snapshot]]:
    """Return the snapshots of equal devices, or of the only devices that were used."""
    first, second = ([each for each in side if len(each.segments) or len(each.trace)] for side in (before, after))
    if len(first) == len(second) == 1:
        return [(first[0], second[0])]
    by_name = {snapshot.device: snapshot for snapshot in second}
    pairs = [(snapshot, by_name[snapshot.device]) for snapshot in first if snapshot.device in by_name]
    if not pairs:
        names = [", ".join(snapshot.device for snapshot in side) or "no memory" for side in (first, second)]
        raise CommandError(
            f"the files share no device: {args.snapshot} has {names[0]}, {args.other_snapshot} {names[1]}"
        )
    return pairs
