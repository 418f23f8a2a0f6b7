"""Reports of the child processes that a program under `forebay run` forks: one directory each, and a summary of all."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from forebay._base.byte_sizes import format_bytes
from forebay.commands.run_output import SNAPSHOT, SUMMARY
from forebay.records.site_choice import DEFAULT_CHOICE

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forebay.records.model import Snapshot

_ROWS = 10  # children in the table
_PAGES = 8  # children in the HTML report


def report_every_end(report: Callable[[], object]) -> None:
    """Call `report` in this forked child before os._exit, with which the children of multiprocessing end, and SIGTERM.

    The pools of multiprocessing end their processes with SIGTERM. A handler of the program is not replaced.
    """
    exit_now = os._exit
    reporting, terminated = False, False

    def report_once() -> None:
        nonlocal reporting
        reporting = True
        report()
        reporting = False
        if terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def report_and_exit(status: int) -> NoReturn:
        report_once()
        exit_now(status)

    def on_terminate(_number: int, _frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        if not reporting:  # else after the report
            report_once()

    os._exit = report_and_exit
    with suppress(ValueError):  # not in the main thread: a thread that forks becomes the main thread only later
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, on_terminate)


def report_before(report: Callable[[], object], announce: Callable[[], object]) -> None:
    """Call `report` before os._exit and, after `announce`, before os.exec* replaces the program by one that exists."""
    exit_now = os._exit

    @wraps(exit_now)
    def report_and_exit(status: int) -> NoReturn:
        report()
        exit_now(status)

    def reporting(replace: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        @wraps(replace)
        def report_and_replace(path: Any, *args: Any, **keywords: Any) -> NoReturn:
            if os.access(path, os.X_OK):  # os.execvp tries each folder of PATH
                announce()
                report()
            replace(path, *args, **keywords)

        return report_and_replace

    os._exit, os.execv, os.execve = report_and_exit, reporting(os.execv), reporting(os.execve)


def directory_of(output: Path, pid: int) -> Path:
    return output / f"process-{pid}"


def collect(output: Path, run: str) -> list[dict[str, Any]]:
    """Return the summaries of the children of a run that have ended, largest first."""
    found = []
    for path in output.glob(f"process-*/{SUMMARY}"):
        with suppress(OSError, ValueError, AttributeError):
            summary = json.loads(path.read_text())
            if summary.get("run") == run:
                found.append(summary)
    return sorted(found, key=lambda each: (-_peak(each), each["pid"]))


def snapshots(output: Path, children: list[dict[str, Any]], own: list[Snapshot]) -> list[Snapshot]:
    """Return the snapshots of the largest children, whose devices are named with the process, with sites like `own`."""
    from forebay.snapshot.formats import native

    found = []
    choice = own[0].site_choice if own else DEFAULT_CHOICE
    for child in children[:_PAGES]:
        with suppress(OSError, ValueError):
            snapshot = native.read(directory_of(output, child["pid"]) / SNAPSHOT)
            found.append(replace(snapshot, device=f"{snapshot.device} in process {child['pid']}", site_choice=choice))
    return found


def table(children: list[dict[str, Any]], width: int) -> RenderableType:
    """Return the summary of all children."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    title = f"{len(children):,} child process{'es' * (len(children) > 1)}"
    lines = Table(box=box.SIMPLE_HEAD, title=Text(title, "bold"), title_justify="left", pad_edge=False)
    lines.add_column("process", justify="right", no_wrap=True)
    headings = ("peak", "small arrays", "resident", "allocations", "seconds")[: 5 if width >= 80 else 3]
    for heading in headings:
        lines.add_column(heading, justify="right", no_wrap=True)
    for child in children[:_ROWS]:
        allocations = sum(device["allocations"] for device in child["devices"])
        sizes = _peak(child), child["other_arrays"]["peak_bytes"], child["resident_peak_bytes"]
        cells = [*map(format_bytes, sizes), f"{allocations:,}", f"{child['seconds']:,.1f}"]
        lines.add_row(str(child["pid"]), *cells[: len(headings)])
    if len(children) > 1:
        resident = max(child["resident_peak_bytes"] for child in children)
        others = max(child["other_arrays"]["peak_bytes"] for child in children)
        cells = [format_bytes(max(map(_peak, children))), format_bytes(others), format_bytes(resident), "", ""]
        lines.add_section()
        lines.add_row("largest", *cells[: len(headings)])
    return lines


def _peak(child: dict[str, Any]) -> int:
    """Return the peak of the devices, which includes the arrays of the parent at the fork."""
    return sum(int(device["peak"]) for device in child["devices"])
