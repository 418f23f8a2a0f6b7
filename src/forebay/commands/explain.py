"""Explain why memory ran out, or which allocations made the peak.

SNAPSHOT is a forebay snapshot or a PyTorch pickle (torch.cuda.memory._dump_snapshot); no code in it is executed. Each
setting that is said to help was proved by a replay of the recorded history with it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.commands import CommandError, command_output
from forebay.commands.site_options import add_site_options
from forebay.commands.snapshot_files import chosen_devices, progress_bar, snapshot_console

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.snapshot import Snapshot
    from forebay.snapshot.analysis.timeline import Timeline
    from forebay.snapshot.replay.changes import Change
    from forebay.snapshot.report.explanation import Explanation
    from forebay.snapshot.report.selection import Selection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("snapshot", type=Path, metavar="SNAPSHOT", help="the snapshot file")
    parser.add_argument("--device", metavar="NAME", help="explain only this device, such as cuda:1")
    parser.add_argument(
        "--error", type=int, default=-1, metavar="N",
        help="explain this out-of-memory event: 0 is the first, -1 (the default) the last",
    )  # fmt: skip
    part = parser.add_mutually_exclusive_group()
    part.add_argument(
        "--step", type=int, metavar="N",
        help="explain the peak of this step: of a range such as ProfilerStep#N, or of a repetition, from 0",
    )  # fmt: skip
    part.add_argument(
        "--at", metavar="TIME", help="explain this moment: a time since the first entry (1.5s, 300ms), or an entry"
    )
    part.add_argument(
        "--between", nargs=2, metavar=("A", "B"), help="explain the peak between these moments, written as for --at"
    )
    parser.add_argument(
        "--what-if", action="append", default=[], metavar="CHANGE", type=_changes,
        help="replay the history with this change of the program: 'train.py:31 size=0.5' (a factor), 'train.py:31 "
        "blocks=10' (at most 10 at once), or 'train.py:31 freed-before=WHEN' (another site, an entry's number, "
        "“backward”, or “error”); “;” joins changes, and the option may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--no-replay", action="store_true", help="do not replay the history with other settings or changes"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_site_options(parser)


def run(args: argparse.Namespace) -> int:
    with command_output():
        if args.what_if and args.no_replay:
            raise CommandError("--what-if needs replays: leave out --no-replay")
        found = _explain_all(chosen_devices(args), args)
        if args.json:
            print(json.dumps([each.as_json() for each in found], indent=2))
        else:
            _print(found)
    return 0


def _explain_all(snapshots: list[Snapshot], args: argparse.Namespace) -> list[Explanation]:
    """Return the explanations of all devices; of a part of the history, those of the devices that have it."""
    from forebay.snapshot.report.selection import BadSelection

    found, missing = [], []
    for snapshot, changes in zip(snapshots, _changes_of(snapshots, args), strict=True):
        try:
            others = [each for each in snapshots if each is not snapshot]
            found.append(_explain(snapshot, changes, others, args))
        except BadSelection as error:
            missing.append(error)
    if missing and not found:
        raise CommandError(str(missing[0])) from missing[0]
    return found


def _changes(text: str) -> tuple[Change, ...]:
    from forebay.snapshot.replay.changes import parse_changes

    try:
        return parse_changes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _changes_of(snapshots: Sequence[Snapshot], args: argparse.Namespace) -> list[list[Sequence[Change]]]:
    """Return the changes of each device: those that name something there, or the first device's, for its error."""
    if not args.what_if:
        return [[] for _ in snapshots]
    from forebay.snapshot.replay.changes import can_apply
    from forebay.snapshot.report.explanation import of_host

    asked: list[list[Sequence[Change]]] = [[] for _ in snapshots]
    replayed = [number for number, snapshot in enumerate(snapshots) if not of_host(snapshot.device)]
    for changes in args.what_if:
        fitting = [number for number in replayed if can_apply(snapshots[number], changes)]
        for number in fitting if len(snapshots) > 1 and fitting else (0,):
            asked[number].append(changes)
    return asked


def _explain(
    snapshot: Snapshot, asked: Sequence[Sequence[Change]], others: Sequence[Snapshot], args: argparse.Namespace
) -> Explanation:
    from forebay.errors import Unsupported
    from forebay.snapshot.report.explanation import explanation
    from forebay.snapshot.report.selection import BadSelection

    with progress_bar(f"replaying {snapshot.device}", 8 * len(snapshot.trace)) as progress:
        try:
            return explanation(
                snapshot, error=args.error, replay=not args.no_replay, asked=asked, others=others, progress=progress,
                select=_selection(snapshot, args),
            )  # fmt: skip
        except BadSelection:
            raise
        except (Unsupported, ValueError) as error:
            raise CommandError(str(error)) from error
        except IndexError:
            from forebay.snapshot.analysis.summary import ooms

            count = len(ooms(snapshot))
            raise CommandError(
                f"{snapshot.device} has {count:,} out-of-memory events in its history, so --error {args.error} is none "
                f"of them" + (f"; choose from 0 to {count - 1}" if count else "")
            ) from None


def _selection(snapshot: Snapshot, args: argparse.Namespace) -> Callable[[Timeline], Selection] | None:
    """Return the function that finds the part of the history to explain; None for all of it."""
    from forebay.snapshot.report.selection import select_between, select_moment, select_step

    if args.step is not None:
        return lambda timeline: select_step(snapshot, timeline, args.step)
    if args.at is not None:
        return lambda timeline: select_moment(timeline, args.at)
    if args.between is not None:
        return lambda timeline: select_between(timeline, *args.between)
    return None


def _print(found: list[Explanation]) -> None:
    from forebay.snapshot.report.explanation_text import paragraphs
    from forebay.snapshot.report.paragraph_rich import print_paragraphs

    console = snapshot_console()
    for each in found:
        print_paragraphs(console, paragraphs(each), alarm=bool(each.errors))
