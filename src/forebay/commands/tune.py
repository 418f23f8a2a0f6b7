"""Find the allocator settings that suit recorded histories.

Each SNAPSHOT (a forebay snapshot or a PyTorch pickle; no code in it is executed) is replayed with each of the settings:
12 by default, those of --settings and --grid, or those that --search tries. The settings are ranked by the requests
that run out of memory, the peak of reserved memory and the device calls. The line with the best ones can be pasted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay._base.untrusted import printable
from forebay.commands import CommandError, command_output, count_argument, size_argument
from forebay.commands.dask_executor import dask_executor
from forebay.commands.snapshot_files import load_snapshots, progress_bar, snapshot_console

if TYPE_CHECKING:
    from forebay.snapshot import Snapshot
    from forebay.snapshot.replay.tuning import Trial, Tuning

_COLUMNS = (("peak", "reserved"), ("above", "least"), ("above", "packing"), ("device", "calls"), ("out of", "memory"))
_WIDE = 72  # columns of a terminal
_PARALLEL = 2_000_000  # entries to replay in total, from which on processes are worth their start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("snapshot", type=Path, nargs="+", metavar="SNAPSHOT", help="the snapshot files")
    parser.add_argument(
        "--grid", nargs="+", action="extend", default=[], metavar="KEY=V1,V2", type=_axis,
        help="try every combination of these values; an empty value leaves the setting out: max_split_size_mb=,64,128",
    )  # fmt: skip
    parser.add_argument(
        "--settings", action="append", default=[], metavar="TEXT",
        help="try these settings, in the format of PYTORCH_ALLOC_CONF; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--search", type=count_argument, metavar="TRIALS",
        help="search for the best settings with at most this many trials; --grid gives the values to search",
    )  # fmt: skip
    parser.add_argument(
        "--capacity", type=size_argument, metavar="SIZE",
        help="memory that the program can reserve (default: as recorded; unlimited if the file does not contain it)",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=count_argument, metavar="N", help="number of processes (default: one per processor)"
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="run on the workers of a Dask scheduler, such as tcp://host:8786"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    with command_output():
        snapshots = [snapshot for path in args.snapshot for snapshot in load_snapshots(path) if len(snapshot.trace)]
        if not snapshots:
            raise CommandError("the files contain no history to replay: record one with _record_memory_history()")
        found = _tune(snapshots, args)
        if args.json:
            print(json.dumps(_as_json(found), indent=2))
        else:
            _print(found, snapshots)
    return 0


def _axis(text: str) -> tuple[str, list[str]]:
    key, separator, values = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=V1,V2, such as max_split_size_mb=64,128")
    return key, values.split(",")


def _tune(snapshots: list[Snapshot], args: argparse.Namespace) -> Tuning:
    from forebay.errors import Unsupported
    from forebay.snapshot.replay import tuning
    from forebay.snapshot.replay.recorded_heaps import recorded_settings_of

    axes = dict(args.grid)
    entries = sum(len(snapshot.trace) for snapshot in snapshots)
    try:
        if args.search is None:
            settings = [*args.settings]
            if axes:
                settings += tuning.grid(axes, recorded_settings_of(snapshots[0]).text)
            settings = settings or tuning.default_settings(snapshots[0])
            trials = len(settings) + 1
        elif args.settings:
            raise CommandError("--search tries settings of its own: use --grid to choose their values, not --settings")
        else:
            settings, trials = [], args.search
        with _executor(args, entries * trials, trials) as executor, progress_bar("replaying", entries * trials) as bar:
            progress: Callable[[int, int], None] | None = bar
            if args.search is None:
                return tuning.tune(snapshots, settings, capacity=args.capacity, executor=executor, progress=progress)
            return tuning.search(
                snapshots, trials=trials, axes=axes or tuning.AXES, capacity=args.capacity, executor=executor,
                progress=progress,
            )  # fmt: skip
    except (ValueError, IndexError, Unsupported) as error:
        raise CommandError(str(error)) from error
    except BrokenExecutor as error:
        raise CommandError(
            f"a process ended during the replay, possibly out of memory: use --jobs 1 ({error})"
        ) from error


@contextmanager
def _executor(args: argparse.Namespace, entries: int, trials: int) -> Iterator[Executor | None]:
    """Context manager for the executor: Dask's, processes, or None where starting processes takes longer."""
    if args.scheduler is not None:
        with dask_executor(args.scheduler) as executor:
            yield executor
    elif args.jobs == 1 or (args.jobs is None and entries < _PARALLEL):
        yield None
    else:
        from forebay.snapshot.replay.tuning import process_executor

        with process_executor(trials, args.jobs) as executor:
            yield executor


def _as_json(found: Tuning) -> dict[str, Any]:
    def one(trial: Trial) -> dict[str, Any]:
        return {
            "settings": trial.settings,
            "environment": trial.environment,
            "peak_reserved": trial.peak_reserved,
            "device_calls": trial.device_calls,
            "failures": trial.failures,
            "outcomes": [asdict(outcome) for outcome in trial.outcomes],
        }

    return {
        "events": found.events,
        "memory": found.memory,
        "least": found.least,
        "packing": asdict(found.packing) | {"whole": found.packing.whole},
        "missing": found.missing,
        "bounds": [asdict(bounds) for bounds in found.bounds],
        "error": found.error,
        "recorded": one(found.recorded),
        "trials": [one(trial) for trial in found.trials],
        "best": one(found.best),
    }


def _print(found: Tuning, snapshots: list[Snapshot]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from forebay._base.byte_sizes import format_bytes
    from forebay.snapshot.report.paragraph import count as counted
    from forebay.snapshot.report.paragraph_rich import number_table

    console = snapshot_console()
    count = len(snapshots)
    devices = printable(snapshots[0].device) if count == 1 else f"{count:,} histories"
    limits = {memory for memory in found.memory if memory is not None}
    if not limits:
        limit = "unlimited memory"
    else:
        limit = f"{format_bytes(min(limits))} of memory" + (" or more" if len(limits) > 1 else "")
    events = counted(found.events, "allocation or free", "allocations and frees")
    console.print(Text(f"{devices}: {events}, replayed with {limit}", "bold"))
    for sentence in _bounds(found):
        console.print(sentence)
    if found.error:
        console.print(
            f"The replay with the recorded settings is {format_bytes(found.error)} off the recorded peak of reserved "
            "memory. Only settings that reserve less by more than twice as much count as better."
        )
    known = f": {_spaced(found.recorded.settings)}" if found.recorded.settings else ""
    named = [(f"as recorded{known}", found.recorded)]
    named += [(_spaced(trial.settings) or "defaults", trial) for trial in found.trials]
    named.sort(key=lambda pair: pair[1].rank)
    # Two lines each, so that the settings have most of the width.
    columns = "settings, best first", *map("\n".join, _COLUMNS)
    rows = [_row(name, trial, found) for name, trial in named]
    if console.width < _WIDE:  # without the distance from the packing
        columns, rows = columns[:3] + columns[4:], [row[:3] + row[4:] for row in rows]
    console.print(number_table(columns, rows))
    best = found.best
    console.print(_conclusion(found))
    if best is not found.recorded and best.settings:
        console.print(Padding.indent(Text(printable(best.environment), "green", no_wrap=True, overflow="ignore"), 4))


def _bounds(found: Tuning) -> Iterator[str]:
    """Yield the sentences on what every setting must reserve, and on what a packing in advance would."""
    from forebay._base.byte_sizes import format_bytes
    from forebay.snapshot.report.paragraph import count

    several = len(found.bounds) > 1
    largest = max(found.bounds, key=lambda bounds: bounds.least)
    yield (
        f"Least: no settings of this allocator can reserve less than {format_bytes(found.least)}"
        f"{' for one of them' if several else ''}: {format_bytes(largest.live)} were live at once, in whole blocks "
        "and segments for each stream, pool and size class."
    )
    packing = found.packing
    what = "all blocks" if packing.whole else f"the {count(packing.packed, 'block')} around the peak"
    yield (
        f"Packing: with all lifetimes known in advance, one piece of {format_bytes(packing.nbytes)} holds {what} (best "
        "fit, the largest first). An allocator does not know them."
    )
    if largest.reserved_before > found.least:
        yield (
            f"{format_bytes(largest.reserved_before)} were reserved when the history began, and each replay begins "
            "with that: record from the start of the program to compare settings below it."
        )
    if found.missing:
        pairs = [pair for pair in zip(found.bounds, found.memory, strict=True) if pair[1] is not None]
        alone = max(bounds.least - (memory or 0) for bounds, memory in pairs)
        what = "The least" if alone > 0 else "The request that failed, beside what was live,"
        more = format_bytes(alone if alone > 0 else found.missing)
        yield f"{what} needs {more} more than the memory: no setting can help."


def _conclusion(found: Tuning) -> str:
    """Return the sentence below the table, which ends with a colon if the settings follow."""
    from forebay._base.byte_sizes import format_bytes

    best, recorded = found.best, found.recorded
    if best is recorded:
        if recorded.failures:
            return "None of these settings helps: with each of them, memory runs out as with the recorded ones."
        return "None of these settings is better than the recorded ones."
    if best.failures:
        better = f"With the best of them, {best.failures:,} instead of {recorded.failures:,} requests run out of memory"
    else:
        saved = recorded.peak_reserved - best.peak_reserved
        saves = f", {format_bytes(saved)} less than with the recorded settings" if saved > 0 else ""
        if best.peak_reserved == recorded.peak_reserved and not recorded.failures:
            saves = f", as with the recorded settings, with {best.device_calls:,} device calls"
            saves += f" instead of {recorded.device_calls:,}"
        better = f"The best of them reserves {format_bytes(best.peak_reserved)} at most{saves}"
    if not best.settings:
        return f"{better}: these are the defaults, so remove the settings of the program."
    return f"{better}:"


def _spaced(settings: str) -> str:
    return printable(settings).replace(",", ", ")


def _row(name: str, trial: Trial, found: Tuning) -> tuple[str, ...]:
    from forebay._base.byte_sizes import format_bytes

    failed = f"{trial.failures:,}" + (" (ended)" if trial.stopped else "") if trial.failures else "no"
    above = [
        f"{trial.peak_reserved / bound - 1:.1%}" if bound and not trial.stopped else "-"
        for bound in (found.least, found.packing.nbytes)
    ]
    return name, format_bytes(trial.peak_reserved), *above, f"{trial.device_calls:,}", failed
