"""The HTML report of a snapshot: one self-contained file without a date, the same bytes for the same snapshot.

All content is rendered here and does not need JavaScript; the script adds tooltips and sorting. Text from a snapshot
enters the page only through `escape_text`, and the content security policy permits only the report's own script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from io import StringIO
from string import Template
from typing import TextIO

from forebay.byte_sizes import format_bytes
from forebay.html_repr import escape_text
from forebay.snapshot.analysis import summary
from forebay.snapshot.model import Snapshot
from forebay.snapshot.report.page import plot, segments, tables
from forebay.snapshot.report.page.view import View, make_view, percentage
from forebay.snapshot.report.text import format_duration, format_rate
from forebay.snapshot.sites import LIBRARY_PACKAGES

__all__ = ["write", "write_several"]

_PARTS = ("html", "css", "js")


def write(snapshot: Snapshot, out: TextIO) -> None:
    """Write the report to a file opened with encoding="utf-8"."""
    view = make_view(snapshot)
    parts = {
        name: files("forebay.snapshot.report.page").joinpath(f"report.{name}").read_text("utf-8") for name in _PARTS
    }
    digest = base64.b64encode(hashlib.sha256(parts["js"].encode()).digest()).decode()
    plot_html, data = plot.section(view)
    data["pieces"], segments_html = segments.section(view)
    page = Template(parts["html"]).substitute(
        script_hash=f"sha256-{digest}",
        style=parts["css"],
        script=parts["js"],
        title=escape_text(f"Memory of {snapshot.device} · forebay"),
        heading=escape_text(f"Memory of {snapshot.device}"),
        program=escape_text(_command(snapshot)),
        facts=_facts(view),
        alarms=_alarms(view),
        tiles=_tiles(view),
        sections=plot_html + tables.at_peak(view) + segments_html + tables.whole_run(view),
        footer=_footer(view),
        # "<" could end the script element; all other characters are safe or already \u-escaped.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    )
    out.write(page)


def write_several(snapshots: Sequence[Snapshot], out: TextIO) -> None:
    """Write one page with the reports of all snapshots, each in a frame of its own if there are several."""
    if len(snapshots) == 1:
        write(snapshots[0], out)
        return
    out.write(f'<!doctype html>\n<meta charset="utf-8">\n<title>Memory of {len(snapshots)} devices · forebay</title>\n')
    for snapshot in snapshots:
        report = StringIO()
        write(snapshot, report)
        style = "border:0;width:100%;height:100vh"
        out.write(f'<iframe style="{style}" srcdoc="{escape(report.getvalue(), quote=True)}"></iframe>\n')


def _facts(view: View) -> str:
    snapshot, numbers = view.snapshot, view.numbers
    taken = datetime.fromtimestamp(snapshot.taken_at_ns // 10**9, UTC)
    facts = {"taken": f"{taken:%Y-%m-%d %H:%M:%S} UTC"}
    if view.recorded:
        entries = "entry" if len(snapshot.trace) == 1 else "entries"
        facts["history"] = f"{format_duration(numbers.span_ns)}, {len(snapshot.trace):,} {entries}"
    if snapshot.capacity:
        facts["device"] = format_bytes(snapshot.capacity)
    return "".join(
        f"<div><dt>{escape_text(name)}</dt><dd>{escape_text(value)}</dd></div>" for name, value in facts.items()
    )


def _alarms(view: View) -> str:
    snapshot, numbers, timeline = view.snapshot, view.numbers, view.timeline
    parts = []
    if found := summary.ooms(snapshot):
        last = found[-1]
        unused = int(timeline.reserved[last.at] - timeline.allocated[last.at])
        when = f"{format_duration(last.time_ns - int(timeline.time_ns[0]))} into the history"
        where = "The program" if last.label.startswith("(") else view.short(last.label)
        text = f"{where} requested {format_bytes(last.wanted)}, {when}. "
        if snapshot.capacity:
            text += (
                f"Of {format_bytes(snapshot.capacity)}, {format_bytes(last.device_free)} was free on the device and "
            )
        else:
            text += "The device has no limit; the system refused the memory. Of the device's memory, "
        text += f"{format_bytes(max(0, unused))} was reserved but not allocated"
        text += ", which would have been enough in one free block." if unused >= last.wanted else "."
        if snapshot.capacity and last.device_free >= last.wanted:
            text += " The free device memory was enough for the block, but not for a new segment."
        count = f" ({len(found):,} times; this is the last)" if len(found) > 1 else ""
        parts.append(f'<section class="alarm"><h2>Out of memory{count}</h2><p>{escape_text(text)}</p></section>')
    if numbers.lost:
        text = f"The ring buffer dropped the first {numbers.lost:,} entries of the history."
        parts.append(f'<p class="remark">{text}</p>')
    if numbers.peak_ever > numbers.peak and view.recorded:
        text = f"The highest peak, {format_bytes(numbers.peak_ever)}, was before the recorded history."
        parts.append(f'<p class="remark">{text}</p>')
    return "\n".join(parts)


def _tiles(view: View) -> str:
    numbers, snapshot = view.numbers, view.snapshot
    capacity = f"{numbers.peak / snapshot.capacity:.0%} of the device" if snapshot.capacity else ""
    used = f"{numbers.current / numbers.reserved:.0%} of it allocated" if numbers.reserved else "nothing reserved"
    ooms = f"{numbers.ooms:,} time{'s' * (numbers.ooms > 1)}" if numbers.ooms else "never"
    counts = f"{numbers.allocations:,} allocated, {numbers.frees:,} freed"
    fragmentation = f"fragmentation {numbers.fragmentation:.0%}" if numbers.current else ""
    rate = f"{format_rate(numbers.per_second)} /s" if numbers.allocations > 1 else f"{numbers.allocations:,}"
    tiles = [
        ("Peak allocated", format_bytes(numbers.peak), capacity, ""),
        ("Allocated now", format_bytes(numbers.current), percentage(numbers.current, numbers.peak, "of the peak"), ""),
        ("Reserved now", format_bytes(numbers.reserved), used, ""),
        ("Allocations", rate, counts, ""),
        ("Largest free block", format_bytes(numbers.largest_free), fragmentation, ""),
        ("Out of memory", ooms, "in this history", "bad" * (numbers.ooms > 0)),
    ]
    if not view.recorded:
        tiles[5] = ("History", "none", "totals and final state only", "")
        if not snapshot.stats:
            tiles[0] = ("Peak reserved", format_bytes(numbers.peak_reserved), "", "")
            tiles[3] = ("Allocations", f"{len(view.timeline.allocations.start):,}", "live now", "")
    return "\n".join(
        f'<div class="tile {kind}"><span>{name}</span><b>{_unit(value)}</b><em>{note}</em></div>'
        for name, value, note, kind in tiles
    )


def _unit(value: str) -> str:
    number, space, unit = value.partition(" ")
    return f"{number}<small>{unit}</small>" if space else number


def _footer(view: View) -> str:
    notes = {name: value for name, value in sorted(view.snapshot.notes.items()) if name != "program"}
    metadata = " · ".join(f"{name} {value}" for name, value in notes.items())
    libraries = f"{', '.join(LIBRARY_PACKAGES[:-1])} and {LIBRARY_PACKAGES[-1]}"
    definitions = (
        "Allocated: bytes that the program requested and has not freed. Reserved: device memory that forebay holds in "
        f"segments. Site: the innermost stack frame outside {libraries}. Fragmentation: the share of the free bytes in "
        "segments that is not in the largest free block."
    )
    return f"<p>{escape_text(metadata)}</p><p>{escape_text(definitions)}</p>"


def _command(snapshot: Snapshot) -> str:
    """Return the command line of the program."""
    program = snapshot.notes.get("program", "")
    return program if isinstance(program, str) else shlex.join(str(word) for word in program)
