"""The HTML report of snapshots: one self-contained file without a date, the same bytes for the same snapshots.

The facts, the explanation of an out-of-memory event and the settings are text. The chart and the tables are drawn by
the page's script from compressed columns (`forebay.snapshot.report.page.explorer`). Text from a snapshot enters the
page only through `escape_text` and as JSON, and the content security policy permits only the report's own script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import TextIO

from forebay._base.byte_sizes import format_bytes
from forebay._base.html_repr import escape_text
from forebay.records.model import Snapshot
from forebay.snapshot.analysis.sampling import peak_error
from forebay.snapshot.formats.external_annotations import ANNOTATIONS
from forebay.snapshot.formats.known_notes import ASSUMPTIONS, ROW_NOTES, SAMPLED, VERDICT, program_of, sampling_mean
from forebay.snapshot.formats.resident_note import RESIDENT, resident_growth_of
from forebay.snapshot.report.page import alarms, assumptions, explorer, settings
from forebay.snapshot.report.page.parts import BRAND, DEFINITIONS
from forebay.snapshot.report.page.view import View, make_view, percentage
from forebay.snapshot.report.text import error_text, format_duration, format_rate, sampled_text

__all__ = ["write", "write_several"]

_FOLDER = Path(__file__).with_name("page")
_PARTS = {"html": "report.html", "css": "report.css", "js": "explorer.js"}


def write(snapshot: Snapshot, out: TextIO) -> None:
    """Write the report to a file opened with encoding="utf-8"."""
    write_several([snapshot], out)


def write_several(
    snapshots: Sequence[Snapshot], out: TextIO, names: Sequence[str] = (), programs: Sequence[str] = ()
) -> None:
    """Write one page for all snapshots, with a choice between them.

    `names` replace the names of the devices. `programs` are equal for devices of the same program, as all are by
    default: where one ran out of memory, the page compares it with the others.
    """
    views = [make_view(each, name) for each, name in zip(snapshots, names or [""] * len(snapshots), strict=True)]
    parts = {kind: _FOLDER.joinpath(name).read_text("utf-8") for kind, name in _PARTS.items()}
    digest = base64.b64encode(hashlib.sha256(parts["js"].encode()).digest()).decode()
    subject = views[0].name if len(views) == 1 else f"{len(views)} devices"
    page = Template(parts["html"]).substitute(
        script_hash=f"sha256-{digest}",
        style=parts["css"],
        script=parts["js"],
        title=escape_text(f"Memory of {subject} · forebay"),
        articles="".join(
            _article(view, _beside(number, snapshots, programs), hidden=number > 0) for number, view in enumerate(views)
        ),
        brand=BRAND,
        footer=DEFINITIONS,
        # "<" could end the script element; all other characters are safe or already \u-escaped.
        data=json.dumps([explorer.data(view) for view in views], separators=(",", ":")).replace("<", "\\u003c"),
    )
    out.write(page)


def _beside(number: int, snapshots: Sequence[Snapshot], programs: Sequence[str]) -> list[Snapshot]:
    """Return the other devices of the same program."""
    same = [not programs or programs[other] == programs[number] for other in range(len(snapshots))]
    return [each for other, each in enumerate(snapshots) if other != number and same[other]]


def _article(view: View, others: Sequence[Snapshot], *, hidden: bool) -> str:
    heading, program = escape_text(f"Memory of {view.name}"), escape_text(_command(view.snapshot))
    return (
        f'<article{" hidden" * hidden}>\n<h1>{heading}</h1>\n<p class="program">{program}</p>\n'
        f'<dl class="facts">{_facts(view)}</dl>\n{alarms.section(view, others)}\n'
        f'{_remarks(view)}<section class="tiles" aria-label="Summary">{_tiles(view)}</section>\n'
        f"{explorer.section(view)}{assumptions.section(view)}{settings.section(view)}{_metadata(view)}</article>\n"
    )


def _remarks(view: View) -> str:
    """Return sentences about the growth of the process's memory, and about the estimates of a sample."""
    sentences = []
    if (growth := resident_growth_of(view.snapshot.notes)) is not None:
        sentences.append(f"{growth.sentence()} {growth.rest()}".rstrip())
    if sampling_mean(view.snapshot.notes):
        sentences.append(f"Sampled. {sampled_text(view.snapshot, view.timeline)}")
    return "".join(f'<p class="remark">{escape_text(each)}</p>\n' for each in sentences)


def _facts(view: View) -> str:
    snapshot, numbers = view.snapshot, view.numbers
    taken = datetime.fromtimestamp(snapshot.taken_at_ns // 10**9, UTC)
    facts = {"taken": f"{taken:%Y-%m-%d %H:%M:%S} UTC"} if snapshot.taken_at_ns else {}
    if view.recorded:
        entries = "entry" if len(snapshot.trace) == 1 else "entries"
        facts["history"] = f"{format_duration(numbers.span_ns)}, {len(snapshot.trace):,} {entries}"
    if snapshot.capacity:
        facts["device"] = format_bytes(snapshot.capacity)
    return "".join(
        f"<div><dt>{escape_text(name)}</dt><dd>{escape_text(value)}</dd></div>" for name, value in facts.items()
    )


def _tiles(view: View) -> str:
    numbers, snapshot = view.numbers, view.snapshot
    # No more than the segments hold, as the chart: a history with missing frees has more.
    most = numbers.peak_allocated
    peak = min(most, numbers.peak_reserved or most, snapshot.capacity or most)
    capacity = f"{peak / snapshot.capacity:.0%} of the device" if snapshot.capacity else ""
    used = f"{numbers.allocated / numbers.reserved:.0%} of it allocated" if numbers.reserved else "nothing reserved"
    of_peak = percentage(numbers.allocated, peak, "of the peak")
    ooms = f"{numbers.ooms:,} time{'s' * (numbers.ooms > 1)}" if numbers.ooms else "never"
    counts = f"{numbers.allocations:,} allocated, {numbers.frees:,} freed"
    fragmentation = f"fragmentation {numbers.fragmentation:.0%}" if numbers.current else ""
    rate = f"{format_rate(numbers.per_second)} /s" if numbers.allocations > 1 else f"{numbers.allocations:,}"
    tiles = [
        ("Peak allocated", format_bytes(peak), capacity, ""),
        ("Allocated at the end", format_bytes(numbers.allocated), of_peak, ""),
        ("Reserved at the end", format_bytes(numbers.reserved), used, ""),
        ("Allocations", rate, counts, ""),
        ("Largest free block", format_bytes(numbers.largest_free), fragmentation, ""),
        ("Out of memory", ooms, "in this history", "bad" * (numbers.ooms > 0)),
    ]
    if sampling_mean(snapshot.notes):  # no device reserves memory for it
        error = error_text(peak_error(snapshot, view.timeline))
        at_end = percentage(numbers.current, numbers.peak, "of the peak")
        tiles[0] = ("Peak, estimated", format_bytes(numbers.peak), error and f"standard error {error}", "")
        tiles[1] = ("At the end, estimated", format_bytes(numbers.current), at_end, "")
        tiles[2] = ("Sampled arrays", f"{numbers.allocations:,}", f"{numbers.frees:,} freed", "")
        del tiles[3:]
    elif not view.recorded:
        tiles[5] = ("History", "none", "totals and final state only", "")
        if not snapshot.stats:
            tiles[0] = ("Peak reserved", format_bytes(numbers.peak_reserved), "", "")
            tiles[3] = ("Allocations", f"{len(view.timeline.allocations.start):,}", "live at the end", "")
    return "\n".join(
        f'<div class="tile {kind}"><span>{name}</span><b>{_unit(value)}</b><em>{note}</em></div>'
        for name, value, note, kind in tiles
    )


def _unit(value: str) -> str:
    number, space, unit = value.partition(" ")
    return f"{number}<small>{unit}</small>" if space else number


def _metadata(view: View) -> str:
    """Return the notes of a snapshot that no other part of the page shows, and that are no internals of its format."""
    elsewhere = {
        "program",
        "order",
        "pools",
        "truncated",
        ASSUMPTIONS,
        RESIDENT,
        SAMPLED,
        VERDICT,
        ANNOTATIONS,
        *ROW_NOTES,
        *settings.NOTES,
    }
    notes = {name: value for name, value in view.snapshot.notes.items() if name not in elsewhere}
    text = " · ".join(f"{name} {value}" for name, value in sorted(notes.items()))
    return f'<p class="metadata">{escape_text(text)}</p>\n' if text else ""


def _command(snapshot: Snapshot) -> str:
    """Return the command line of the program."""
    program = program_of(snapshot.notes)
    return program if isinstance(program, str) else shlex.join(program)
