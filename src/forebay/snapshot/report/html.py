"""A snapshot as one HTML file: no network, no date of writing, the same bytes for the same snapshot.

Everything that can be seen is drawn here, so the page says the same without JavaScript; the script adds looking closer
and sorting. Text from a snapshot has one way into the page, `foreign`, and the page's policy lets one script run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from datetime import UTC, datetime
from importlib.resources import files
from string import Template
from typing import TextIO

from forebay.byte_sizes import format_bytes
from forebay.snapshot.analysis import summary
from forebay.snapshot.model import Snapshot
from forebay.snapshot.report.page import plot, segments, tables
from forebay.snapshot.report.page.view import View, foreign, look, part_of
from forebay.snapshot.report.text import format_duration, format_rate
from forebay.snapshot.sites import PLUMBING

__all__ = ["write"]

_PARTS = ("html", "css", "js")


def write(snapshot: Snapshot, out: TextIO) -> None:
    """Write the report; open the file with encoding="utf-8"."""
    view = look(snapshot)
    parts = {
        name: files("forebay.snapshot.report.page").joinpath(f"report.{name}").read_text("utf-8") for name in _PARTS
    }
    digest = base64.b64encode(hashlib.sha256(parts["js"].encode()).digest()).decode()
    drawing, data = plot.section(view)
    data["pieces"], boxes = segments.section(view)
    page = Template(parts["html"]).substitute(
        script_hash=f"sha256-{digest}",
        style=parts["css"],
        script=parts["js"],
        title=foreign(f"Memory of {snapshot.device} · forebay"),
        heading=foreign(f"Memory of {snapshot.device}"),
        program=foreign(_command(snapshot)),
        facts=_facts(view),
        alarms=_alarms(view),
        tiles=_tiles(view),
        sections=drawing + tables.at_peak(view) + boxes + tables.whole_run(view),
        footer=_footer(view),
        # "<" would end the script element; every other character is either safe or already \u-escaped.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    )
    out.write(page)


def _facts(view: View) -> str:
    snapshot, numbers = view.snapshot, view.numbers
    taken = datetime.fromtimestamp(snapshot.taken_at_ns // 10**9, UTC)
    facts = {"taken": f"{taken:%Y-%m-%d %H:%M:%S} UTC"}
    if view.recorded:
        entries = "entry" if len(snapshot.trace) == 1 else "entries"
        facts["history"] = f"{format_duration(numbers.span_ns)}, {len(snapshot.trace):,} {entries}"
    if snapshot.capacity:
        facts["device"] = format_bytes(snapshot.capacity)
    return "".join(f"<div><dt>{foreign(name)}</dt><dd>{foreign(value)}</dd></div>" for name, value in facts.items())


def _alarms(view: View) -> str:
    snapshot, numbers, timeline = view.snapshot, view.numbers, view.timeline
    parts = []
    if found := summary.ooms(snapshot):
        last = found[-1]
        idle = int(timeline.reserved[last.at] - timeline.allocated[last.at])
        when = f"{format_duration(last.time_ns - int(timeline.time_ns[0]))} into the history"
        who = "The program" if last.label.startswith("(") else view.short(last.label)
        words = (
            f"{who} wanted {format_bytes(last.wanted)}, {when}. The device had "
            f"{format_bytes(last.device_free)} free of {format_bytes(snapshot.capacity)}; {format_bytes(max(0, idle))} "
            "was reserved here but not allocated"
        )
        words += ": enough, had it been free and in one piece." if idle >= last.wanted else "."
        if last.device_free >= last.wanted:
            words += (
                " What was free on the device was enough for the block, but not for the segment it would come from."
            )
        many = f" {len(found):,} times; the last:" if len(found) > 1 else ""
        parts.append(f'<section class="alarm"><h2>Out of memory{many}</h2><p>{foreign(words)}</p></section>')
    if numbers.lost:
        parts.append(f'<p class="remark">The history is a ring: its first {numbers.lost:,} entries are gone.</p>')
    if numbers.peak_ever > numbers.peak and view.recorded:
        words = f"The highest peak, {format_bytes(numbers.peak_ever)}, was before the recorded history."
        parts.append(f'<p class="remark">{words}</p>')
    return "\n".join(parts)


def _tiles(view: View) -> str:
    numbers, snapshot = view.numbers, view.snapshot
    capacity = f"{numbers.peak / snapshot.capacity:.0%} of the device" if snapshot.capacity else ""
    used = f"{numbers.current / numbers.reserved:.0%} of it allocated" if numbers.reserved else "nothing held"
    many = f"{numbers.ooms:,} time{'s' * (numbers.ooms > 1)}" if numbers.ooms else "never"
    busy = f"{numbers.allocations:,} taken, {numbers.frees:,} freed"
    tiles = [
        ("Peak allocated", format_bytes(numbers.peak), capacity, ""),
        ("Allocated now", format_bytes(numbers.current), part_of(numbers.current, numbers.peak, "of the peak"), ""),
        ("Reserved now", format_bytes(numbers.reserved), used, ""),
        ("Allocations", f"{format_rate(numbers.per_second)} /s", busy, ""),
        ("Largest free piece", format_bytes(numbers.largest_free), f"fragmentation {numbers.fragmentation:.0%}", ""),
        ("Out of memory", many, "in this history", "bad" * (numbers.ooms > 0)),
    ]
    if not view.recorded:
        tiles[5] = ("History", "none", "totals, and what is held now", "")
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
    words = " · ".join(f"{name} {value}" for name, value in notes.items())
    how = (
        "Allocated is what the program asked for and has not given back; reserved is what forebay holds of the "
        f"device. A site is the innermost line outside {', '.join(PLUMBING[:-1])} and {PLUMBING[-1]}. Fragmentation "
        "is the part of the free bytes in segments that lies outside the largest free piece."
    )
    return f"<p>{foreign(words)}</p><p>{foreign(how)}</p>"


def _command(snapshot: Snapshot) -> str:
    """What ran, as it would be typed."""
    program = snapshot.notes.get("program", "")
    return program if isinstance(program, str) else shlex.join(str(word) for word in program)
