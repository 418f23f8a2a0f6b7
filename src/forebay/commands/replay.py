"""Replay a recorded memory history to verify it or to try other settings.

SNAPSHOT is a forebay snapshot or a PyTorch pickle (torch.cuda.memory._dump_snapshot); no code in it is executed. The
replay begins with the blocks that were live before the history began. With --check, every allocation is placed anew by
the rules of PyTorch's allocator and compared with the recorded address; the exit status is 1 if an address differs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay._base.untrusted import printable
from forebay.commands import CommandError, command_output, size_argument
from forebay.commands.snapshot_files import load_snapshots, progress_bar

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forebay.snapshot import Snapshot
    from forebay.snapshot.replay.engine import Check, History, Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("snapshot", type=Path, metavar="SNAPSHOT", help="the snapshot file")
    parser.add_argument("--check", action="store_true", help="compare all allocations with their recorded addresses")
    parser.add_argument(
        "--settings", action="append", default=[], metavar="TEXT", type=_settings,
        help="replay with these settings, in the format of FOREBAY_ALLOC_CONF (for an MPS device: "
        "high_watermark_ratio:0.0,low_watermark_ratio:1.0); may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--memory", type=size_argument, metavar="SIZE",
        help="memory of the simulated device (default: as recorded; unlimited if the file does not contain it)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    with command_output():
        reports = [_replay(snapshot, args) for snapshot in load_snapshots(args.snapshot)]
        if args.json:
            print(json.dumps([report.as_json() for report in reports], indent=2))
        else:
            _show(reports)
    return 0 if all(report.check is None or report.check.equal for report in reports) else 1


class _DeviceReport:
    """Results for one device."""

    def __init__(self, snapshot: Snapshot, history: History, check: Check | None, outcomes: list[Outcome]) -> None:
        self.snapshot, self.history, self.check, self.outcomes = snapshot, history, check, outcomes
        self.device = printable(snapshot.device)

    def as_json(self) -> dict[str, Any]:
        history, check = self.history, self.check
        return {
            "device": self.snapshot.device,
            "entries": history.entries,
            "events": history.events,
            "lost": self.snapshot.lost,
            "settings": history.recorded.text if history.recorded.known else None,
            "memory": history.memory,
            "peak_allocated": history.peak_allocated,
            "peak_reserved": history.peak_reserved,
            "device_allocs": history.device_allocs,
            "device_frees": history.device_frees,
            "check": asdict(check) if check else None,
            "replays": [asdict(outcome) | {"ran_out": outcome.ran_out} for outcome in self.outcomes],
        }


def _settings(text: str) -> str:
    from forebay.simulate import Device
    from forebay.spi import Heaps

    heaps = Heaps(1 << 29, 1 << 28) if "watermark" in text else None  # the replay checks whether they suit the file
    try:
        Device(1 << 30, text, heaps=heaps)
    except (ValueError, IndexError, RuntimeError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    return text


def _replay(snapshot: Snapshot, args: argparse.Namespace) -> _DeviceReport:
    from forebay.errors import Unsupported
    from forebay.snapshot.replay import engine

    entries = len(snapshot.trace)
    check = None
    if args.check:
        with progress_bar(f"checking {snapshot.device}", entries) as progress:
            try:
                check = engine.check(snapshot, progress)
            except Unsupported as error:
                raise CommandError(str(error)) from error
    try:
        history = engine.History(snapshot)
    except Unsupported as error:
        raise CommandError(str(error)) from error
    memory = args.memory or history.memory
    variants = [None, *args.settings] if args.settings or args.memory else []  # None: as recorded, for comparison
    outcomes = []
    for settings in variants:
        with progress_bar(f"replaying {settings or 'as recorded'}", entries) as progress:
            try:
                outcomes.append(history.run(settings, memory, progress=progress))
            except ValueError as error:  # settings for segments and a device with heaps, or the other way round
                raise CommandError(f"{snapshot.device}: {error}") from error
    return _DeviceReport(snapshot, history, check, outcomes)


def _show(reports: list[_DeviceReport]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    wide = console if console.is_terminal else Console(highlight=False, width=max(console.width, 120))
    for report in reports:
        wide.print(_table(report))
        for remark in _remarks(report):
            wide.print(remark, style="dim", markup=False)
        if (check := report.check) is not None:
            style = "green" if check.equal else "red"
            where = f"{report.device}: " if len(reports) > 1 else ""
            text = f"{where}{check.placed:,} of {check.total:,} allocations placed as recorded"
            wide.print(text, style=style, markup=False)
            if check.learned:
                facts = f"{check.learned:,} {'fact' if check.learned == 1 else 'facts'} about the initial state"
                wide.print(f"{facts}, missing in the file, inferred from the recorded addresses", style="dim")
            if check.first is not None:
                wide.print(f"first difference: {check.first}", soft_wrap=True, markup=False)


def _table(report: _DeviceReport) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from forebay._base.byte_sizes import format_bytes
    from forebay.snapshot.replay.engine import BEFORE
    from forebay.snapshot.report.paragraph import count

    history = report.history
    events = "1 allocation or free" if history.events == 1 else f"{history.events:,} allocations and frees"
    title = f"{report.device}: {events} in {count(history.entries, 'entry', 'entries')}"
    table = Table(box=box.SIMPLE_HEAD, title=Text(title, "bold"), title_justify="left", pad_edge=False)
    table.add_column("\nsettings", overflow="fold")
    for heading in ("peak\nallocated", "peak\nreserved", "device\nallocs", "device\nfrees"):
        table.add_column(heading, justify="right")
    if report.outcomes:
        table.add_column("out of\nmemory")

    def row(name: Text, allocated: int, reserved: int, calls: tuple[int, int], end: Text) -> None:
        cells = [format_bytes(allocated), format_bytes(reserved), *(f"{count:,}" for count in calls)]
        table.add_row(name, *cells, *([end] if report.outcomes else []))

    calls = history.device_allocs, history.device_frees
    row(Text("as recorded"), history.peak_allocated, history.peak_reserved, calls, Text(""))
    for number, outcome in enumerate(report.outcomes):
        end = Text("no", "green")
        if outcome.ran_out == BEFORE:
            end = Text("at the start", "red")
        elif outcome.ran_out is not None:
            end = Text(f"at entry {outcome.ran_out:,}" + ("" if outcome.stopped else ", and continued"), "red")
        name = Text(printable(outcome.settings).replace(",", ",\n")) if number else Text("the same, replayed")
        calls = outcome.device_allocs, outcome.device_frees
        row(name, outcome.peak_allocated, outcome.peak_reserved, calls, end)
    return table


def _remarks(report: _DeviceReport) -> Iterator[str]:
    from forebay._base.byte_sizes import format_bytes
    from forebay.snapshot.formats.known_notes import truncation_of

    history = report.history
    if history.recorded.text:
        yield f"Recorded with {printable(history.recorded.text)}."
    elif not history.recorded.known:
        yield "The file does not contain the settings of the recording; the defaults are assumed."
    if truncated := truncation_of(report.snapshot.notes):
        yield f"Truncated: {printable(truncated)}."
    if report.snapshot.lost:
        yield f"The ring buffer dropped the first {report.snapshot.lost:,} entries."
    if report.outcomes:
        memory = report.outcomes[0].memory
        limit = "with unlimited memory" if memory is None else f"with {format_bytes(memory)} of memory"
        yield f"Replayed {limit}; blocks live before the history began are allocated first and not counted as calls."
