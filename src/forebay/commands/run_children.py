"""Reports of the child processes of a program under `forebay run`: one directory each, and a summary of all."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay._base.byte_sizes import format_bytes
from forebay.commands import run_output
from forebay.commands.run_output import SNAPSHOT, SUMMARY
from forebay.records.site_choice import DEFAULT_CHOICE

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forebay.records.model import Snapshot

_ROWS = 10  # children in the table
_PAGES = 8  # children in the HTML report


def free_directory(output: Path, pid: int) -> Path:
    """Return the directory for a child, with a number if the process had a report before it replaced itself."""
    return run_output.free_directory(output / f"process-{pid}")


def collect(output: Path, run: str) -> list[dict[str, Any]]:
    """Return the summaries of the children of a run that have ended, largest first."""
    found = []
    for path in output.glob(f"process-*/{SUMMARY}"):
        with suppress(OSError, ValueError, AttributeError):
            summary = json.loads(path.read_text())
            if summary.get("run") == run:
                found.append({**summary, "directory": path.parent.name})
    return sorted(found, key=lambda each: (-_peak(each), each["pid"]))


def snapshots(output: Path, children: list[dict[str, Any]], own: list[Snapshot]) -> list[Snapshot]:
    """Return the snapshots of the largest children, whose devices are named with the process, with sites like `own`."""
    from forebay.snapshot.formats import native

    found = []
    choice = own[0].site_choice if own else DEFAULT_CHOICE
    for child in children[:_PAGES]:
        with suppress(OSError, ValueError):
            snapshot = native.read(output / child["directory"] / SNAPSHOT)
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
