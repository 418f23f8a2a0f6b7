"""Compare the ranks of a distributed program: one memory snapshot for each rank.

DIRECTORY contains the snapshots, one file for each rank: forebay's or PyTorch's; no code in them is executed. The
report has the peak of each rank, out-of-memory errors, outliers, the site that makes each of them differ, and the sites
whose memory differs most between the ranks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.commands import CommandError, command_output
from forebay.commands.output_files import add_overwrite, check_output
from forebay.commands.site_options import add_site_options, chosen_sites
from forebay.commands.snapshot_files import progress_bar, snapshot_console, write_page

if TYPE_CHECKING:
    from forebay.snapshot.analysis.ranks import Ranks

SUFFIXES = (".pickle", ".pkl", ".forebay", ".gz", ".zst", ".snapshot")
_PARALLEL = 8 << 20  # bytes in all files, from which on processes are worth their start
_BYTES_PER_ENTRY = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="the folder with a snapshot for each rank")
    parser.add_argument(
        "--pattern", metavar="GLOB", help=f"names of the files (default: those that end in {', '.join(SUFFIXES)})"
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="files that are read at once (default: one per processor)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write an HTML page instead")
    add_overwrite(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_site_options(parser)


def run(args: argparse.Namespace) -> int:
    from forebay.snapshot.report.ranks_text import ranks_paragraphs

    with command_output():
        files = _files(args)
        check_output(args.html, files, "--html", overwrite=args.overwrite)
        found = _compare(files, args)
        if args.json:
            print(json.dumps(asdict(found) | {"skew": found.skew}, indent=2))
        elif args.html is not None:
            write_page(args.html, f"Ranks in {args.directory.name or args.directory}", ranks_paragraphs(found))
            print(args.html)
        else:
            failed = any(rank.ooms for rank in found.ranks)
            from forebay.snapshot.report.paragraph_rich import print_paragraphs

            print_paragraphs(snapshot_console(), ranks_paragraphs(found), alarm=failed)
    return 0 if found.ranks else 1


def _files(args: argparse.Namespace) -> list[Path]:
    try:
        if args.pattern is not None:
            files = sorted(path for path in args.directory.glob(args.pattern) if path.is_file())
        else:
            files = sorted(path for path in args.directory.iterdir() if path.name.endswith(SUFFIXES))
    except (OSError, ValueError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"cannot list {str(args.directory)!r}: {reason}") from error
    if not files:
        names = args.pattern or ", ".join(f"*{suffix}" for suffix in SUFFIXES)
        raise CommandError(f"{args.directory} contains no snapshot ({names}); choose other names with --pattern")
    return files


def _compare(files: list[Path], args: argparse.Namespace) -> Ranks:
    from forebay.snapshot.analysis.ranks import compare_ranks

    choice = chosen_sites(args)
    sizes = sum(path.stat().st_size for path in files if path.is_file())
    affinity = getattr(os, "sched_getaffinity", None)
    available = args.jobs or (len(affinity(0)) if affinity is not None else os.cpu_count()) or 1
    workers = max(1, min(available, len(files)))
    with progress_bar("reading", sizes // _BYTES_PER_ENTRY) as bar:

        def progress(done: int) -> None:
            if bar is not None:
                bar(done, len(files))

        if workers == 1 or (args.jobs is None and sizes < _PARALLEL):
            return compare_ranks(files, choice, progress=progress)
        context = multiprocessing.get_context("spawn")  # not forked: this process may have threads
        try:
            with ProcessPoolExecutor(workers, mp_context=context) as executor:
                return compare_ranks(files, choice, executor=executor, workers=workers, progress=progress)
        except BrokenExecutor as error:
            text = "a process ended while it read a file, possibly out of memory: use --jobs 1"
            raise CommandError(text) from error
