"""Replay a recorded history: is it the same one, and what would other settings have made of it?

SNAPSHOT is a file of forebay's or a pickle of PyTorch's (torch.cuda.memory._dump_snapshot); nothing in it is run. The
replay begins with what was live when the history began. With --check every allocation is placed anew by the rules of
PyTorch's allocator and compared with the recorded address; the exit status is 1 unless all are equal.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.commands import Failure, showing, size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forebay.snapshot import Snapshot
    from forebay.snapshot.replay.engine import Check, History, Outcome

LONG = 200_000  # entries that are worth a bar

Progress = Callable[[int, int], None]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("snapshot", type=Path, metavar="SNAPSHOT", help="the file")
    parser.add_argument("--check", action="store_true", help="compare the addresses of all allocations")
    parser.add_argument(
        "--settings", action="append", default=[], metavar="TEXT", type=_settings,
        help="replay under these settings, as FOREBAY_ALLOC_CONF has them (of an MPS device: "
        "high_watermark_ratio:0.0,low_watermark_ratio:1.0); may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--memory", type=size, metavar="SIZE",
        help="on a device with so much memory (default: what it had, if the file tells; else without a limit)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="the same as JSON, for programs")


def run(args: argparse.Namespace) -> int:
    with showing():
        told = [_replay(snapshot, args) for snapshot in _load(args.snapshot)]
        if args.json:
            print(json.dumps([one.as_json() for one in told], indent=2))
        else:
            _show(told)
    return 0 if all(one.check is None or one.check.equal for one in told) else 1


class _Told:
    """What is said of one device."""

    def __init__(self, snapshot: Snapshot, history: History, check: Check | None, outcomes: list[Outcome]) -> None:
        self.snapshot, self.history, self.check, self.outcomes = snapshot, history, check, outcomes

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

    heaps = Heaps(1 << 29, 1 << 28) if "watermark" in text else None  # whether it is for the file, the replay will see
    try:
        Device(1 << 30, text, heaps=heaps)
    except (ValueError, IndexError, RuntimeError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    return text


def _load(path: Path) -> tuple[Snapshot, ...]:
    from forebay import snapshot
    from forebay.snapshot.formats.native import BadSnapshot

    try:
        with _bar("reading", path.stat().st_size >> 6) as progress:
            return snapshot.load(path, progress)
    except BadSnapshot as error:
        raise Failure(" ".join(str(error).split())) from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise Failure(f"cannot read the snapshot {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error
    except MemoryError as error:
        raise Failure(f"cannot read the snapshot {str(path)!r}: it needs more memory than there is") from error


def _replay(snapshot: Snapshot, args: argparse.Namespace) -> _Told:
    from forebay.errors import Unsupported
    from forebay.snapshot.replay import engine

    entries = len(snapshot.trace)
    check = None
    if args.check:
        with _bar(f"checking {snapshot.device}", entries) as progress:
            try:
                check = engine.check(snapshot, progress)
            except Unsupported as error:
                raise Failure(str(error)) from error
    history = engine.History(snapshot)
    memory = args.memory or history.memory
    wanted = [None, *args.settings] if args.settings or args.memory else []  # None: as recorded, to compare with
    outcomes = []
    for settings in wanted:
        with _bar(f"replaying {settings or 'as recorded'}", entries) as progress:
            try:
                outcomes.append(history.run(settings, memory, progress=progress))
            except ValueError as error:  # they are of segments, and the file is of heaps, or the other way
                raise Failure(f"{snapshot.device}: {error}") from error
    return _Told(snapshot, history, check, outcomes)


def _show(told: list[_Told]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    wide = console if console.is_terminal else Console(highlight=False, width=max(console.width, 120))
    for one in told:
        wide.print(_table(one))
        for remark in _remarks(one):
            wide.print(remark, style="dim", markup=False)
        if (check := one.check) is not None:
            style = "green" if check.equal else "red"
            where = f"{one.snapshot.device}: " if len(told) > 1 else ""
            wide.print(f"[{style}]{where}{check.placed:,} of {check.total:,} allocations placed as recorded[/]")
            if check.learned:
                facts = (
                    f"{check.learned:,} {'fact' if check.learned == 1 else 'facts'} about the state at the beginning"
                )
                wide.print(f"{facts}, which the file does not tell, worked out from the choices", style="dim")
            if check.first is not None:
                wide.print(f"first difference: {check.first}", soft_wrap=True, markup=False)


def _table(told: _Told) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from forebay.byte_sizes import format_bytes
    from forebay.snapshot.replay.engine import BEFORE

    history = told.history
    title = f"{told.snapshot.device}: {history.events:,} allocations and frees in {history.entries:,} entries"
    table = Table(box=box.SIMPLE_HEAD, title=Text(title, "bold"), title_justify="left", pad_edge=False)
    table.add_column("\nsettings", overflow="fold")
    for heading in ("peak\nallocated", "peak\nreserved", "device\nallocs", "device\nfrees"):
        table.add_column(heading, justify="right")
    if told.outcomes:
        table.add_column("out of\nmemory")

    def row(name: Text, allocated: int, reserved: int, calls: tuple[int, int], end: Text) -> None:
        cells = [format_bytes(allocated), format_bytes(reserved), *(f"{count:,}" for count in calls)]
        table.add_row(name, *cells, *([end] if told.outcomes else []))

    calls = history.device_allocs, history.device_frees
    row(Text("as recorded"), history.peak_allocated, history.peak_reserved, calls, Text(""))
    for number, outcome in enumerate(told.outcomes):
        end = Text("no", "green")
        if outcome.ran_out == BEFORE:
            end = Text("at the start", "red")
        elif outcome.ran_out is not None:
            end = Text(f"at entry {outcome.ran_out:,}" + ("" if outcome.stopped else ", and went on"), "red")
        name = Text(outcome.settings.replace(",", ",\n")) if number else Text("the same, replayed")
        calls = outcome.device_allocs, outcome.device_frees
        row(name, outcome.peak_allocated, outcome.peak_reserved, calls, end)
    return table


def _remarks(told: _Told) -> Iterator[str]:
    from forebay.byte_sizes import format_bytes

    history = told.history
    if history.recorded.text:
        yield f"Recorded with {history.recorded.text}."
    elif not history.recorded.known:
        yield "The file does not tell under which settings it was recorded: taken for the defaults."
    if told.snapshot.lost:
        yield f"The first {told.snapshot.lost:,} entries were dropped: the ring was full."
    if told.outcomes:
        memory = told.outcomes[0].memory
        limit = "without a limit" if memory is None else f"with {format_bytes(memory)} of memory"
        yield f"Replayed {limit}; what was live when the history began is allocated first, and not counted as calls."


@contextmanager
def _bar(what: str, entries: int) -> Iterator[Progress | None]:
    """A bar on standard error for what takes long, where somebody watches."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True, highlight=False)
    if entries < LONG or not console.is_terminal:
        yield None
        return
    looks = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn()
    with Progress(*looks, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task(what, total=1)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done / max(total, 1))
            progress.refresh()

        yield show
