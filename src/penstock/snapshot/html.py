"""A snapshot as one HTML file: no network, no date of writing, the same bytes for the same snapshot.

Everything that can be seen is drawn here, so the page says the same without JavaScript; the script adds looking closer
and sorting. Text from a snapshot is foreign: `_t` is the only way into the page, and the page's policy runs one script.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from importlib.resources import files
from string import Template
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from penstock.sizes import format_bytes
from penstock.snapshot import analyse
from penstock.snapshot.model import Frame, Snapshot, State
from penstock.snapshot.page import axes, chart
from penstock.snapshot.sites import PLUMBING, Sites, label_of, relative, site_of
from penstock.snapshot.text import format_duration, format_rate
from penstock.snapshot.timeline import Timeline, reconstruct

__all__ = ["write"]

_TOP = 9  # sites with a colour of their own; the palette has no tenth that everybody can tell apart
_PEAK_ROWS, _TOTAL_ROWS, _FLAGS = 25, 200, 20
_SEGMENTS, _PIECES, _FINE = 400, 6000, 2000


def write(snapshot: Snapshot, out: TextIO) -> None:
    """Write the report; open the file with encoding="utf-8"."""
    view = _look(snapshot)
    parts = {name: files("penstock.snapshot.page").joinpath(f"report.{name}").read_text("utf-8") for name in _PARTS}
    digest = base64.b64encode(hashlib.sha256(parts["js"].encode()).digest()).decode()
    drawing, data = _chart(view)
    data["pieces"], segments = _segments(view)
    page = Template(parts["html"]).substitute(
        script_hash=f"sha256-{digest}",
        style=parts["css"],
        script=parts["js"],
        title=_t(f"Memory of {snapshot.device} · penstock"),
        heading=_t(f"Memory of {snapshot.device}"),
        program=_t(str(snapshot.notes.get("program", ""))),
        facts=_facts(view),
        alarms=_alarms(view),
        tiles=_tiles(view),
        sections=drawing + _at_peak(view) + segments + _whole_run(view),
        footer=_footer(view),
        # "<" would end the script element; every other character is either safe or already \u-escaped.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    )
    out.write(page)


_PARTS = ("html", "css", "js")


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """What all sections need: worked out once."""

    snapshot: Snapshot
    timeline: Timeline
    numbers: analyse.Summary
    uses: list[analyse.SiteUse]  # at the peak
    totals: list[analyse.SiteTotal]
    known: Sites
    rank: NDArray[np.int64]  # of every site: its colour, _TOP for the rest
    top: list[str]  # labels by rank
    home: str

    @property
    def recorded(self) -> bool:
        return len(self.snapshot.trace) > 0

    def short(self, label: str) -> str:
        return label.removeprefix(self.home)


def _look(snapshot: Snapshot) -> _View:
    timeline = reconstruct(snapshot)
    uses, totals = analyse.sites(snapshot, timeline=timeline), analyse.totals(snapshot, timeline=timeline)
    known = site_of(snapshot)
    top = list(dict.fromkeys([use.label for use in uses] + [whole.label for whole in totals]))[:_TOP]
    places = {label: rank for rank, label in enumerate(top)}
    rank = np.array([places.get(label_of(frame), _TOP) for frame in known.frames])
    home, _ = relative(top)
    numbers = analyse.summary(snapshot, timeline=timeline)
    return _View(snapshot, timeline, numbers, uses, totals, known, rank, top, home)


def _t(text: str) -> str:
    return escape(label_of(Frame(text, "", 0)))  # which leaves out what no page should hold


def _facts(view: _View) -> str:
    snapshot, numbers = view.snapshot, view.numbers
    taken = datetime.fromtimestamp(snapshot.taken_at_ns // 10**9, timezone.utc)
    facts = {"taken": f"{taken:%Y-%m-%d %H:%M:%S} UTC"}
    if view.recorded:
        facts["history"] = f"{format_duration(numbers.span_ns)}, {len(snapshot.trace):,} entries"
    if snapshot.capacity:
        facts["device"] = format_bytes(snapshot.capacity)
    return "".join(f"<div><dt>{_t(name)}</dt><dd>{_t(value)}</dd></div>" for name, value in facts.items())


def _alarms(view: _View) -> str:
    snapshot, numbers, timeline = view.snapshot, view.numbers, view.timeline
    parts = []
    if found := analyse.ooms(snapshot):
        last = found[-1]
        idle = int(timeline.reserved[last.at] - timeline.allocated[last.at])
        when = f"{format_duration(last.time_ns - int(timeline.time_ns[0]))} into the history"
        words = (
            f"{view.short(last.label)} wanted {format_bytes(last.wanted)}, {when}. The device had "
            f"{format_bytes(last.device_free)} free of {format_bytes(snapshot.capacity)}; {format_bytes(max(0, idle))} "
            "was reserved here but not allocated"
        )
        words += ": enough, but not in one piece." if idle >= last.wanted else "."
        many = f" {len(found):,} times; the last:" if len(found) > 1 else ""
        parts.append(f'<section class="alarm"><h2>Out of memory{many}</h2><p>{_t(words)}</p></section>')
    if numbers.lost:
        parts.append(f'<p class="remark">The history is a ring: its first {numbers.lost:,} entries are gone.</p>')
    if numbers.peak_ever > numbers.peak and view.recorded:
        words = f"The highest peak, {format_bytes(numbers.peak_ever)}, was before the recorded history."
        parts.append(f'<p class="remark">{words}</p>')
    return "\n".join(parts)


def _tiles(view: _View) -> str:
    numbers, snapshot = view.numbers, view.snapshot
    capacity = f"{numbers.peak / snapshot.capacity:.0%} of the device" if snapshot.capacity else ""
    used = f"{numbers.current / numbers.reserved:.0%} of it allocated" if numbers.reserved else "nothing held"
    busy = f"{numbers.allocations:,} taken, {numbers.frees:,} freed"
    tiles = [
        ("Peak allocated", format_bytes(numbers.peak), capacity, ""),
        ("Allocated now", format_bytes(numbers.current), _of(numbers.current, numbers.peak, "of the peak"), ""),
        ("Reserved now", format_bytes(numbers.reserved), used, ""),
        ("Allocations", f"{format_rate(numbers.per_second)} /s", busy, ""),
        ("Largest free piece", format_bytes(numbers.largest_free), f"fragmentation {numbers.fragmentation:.0%}", ""),
        ("Out of memory", f"{numbers.ooms:,} ×" if numbers.ooms else "never", "in this history", "bad" * (numbers.ooms > 0)),
    ]
    if not view.recorded:
        tiles[0] = ("Peak reserved", format_bytes(numbers.peak_reserved), "", "")
        tiles[3] = ("Allocations", f"{len(view.timeline.allocations.start):,}", "live now", "")
        tiles[5] = ("History", "off", "only what is held now is known", "")
    return "\n".join(
        f'<div class="tile {kind}"><span>{name}</span><b>{_unit(value)}</b><em>{note}</em></div>'
        for name, value, note, kind in tiles
    )


def _of(part: int, whole: int, words: str) -> str:
    return f"{part / whole:.0%} {words}" if whole else ""


def _unit(value: str) -> str:
    number, space, unit = value.partition(" ")
    return f"{number}<small>{unit}</small>" if space else number


def _chart(view: _View) -> tuple[str, dict[str, object]]:
    """The drawing, once by time and once by entry, and what the script needs to look closer."""
    timeline, snapshot = view.timeline, view.snapshot
    heading = "Memory over time"
    if not view.recorded:
        words = "No history was recorded, so there is nothing to draw. What is held now stands below."
        empty = {"time": [], "moment": [], "layers": [], "reserved": [], "keys": [], "labels": []}
        return f'<section class="card"><h2>{heading}</h2><p class="empty">{words}</p></section>', dict(empty)

    found = analyse.ooms(snapshot)[-_FLAGS:]
    rank = view.rank[view.known.of_stack[timeline.allocations.stack]]
    curves = chart.curves(timeline, rank, _TOP + 1, [timeline.peak, timeline.moments - 1, *(oom.at for oom in found)])
    # What stays lies at the bottom, what comes and goes on top of it: every layer is then easy to follow.
    full = curves.layers.max(axis=1)
    steady = [-float(curves.layers[i].mean()) / full[i] if full[i] else 0.0 for i in range(_TOP)]
    order = [i for i in [*sorted(range(_TOP), key=lambda i: steady[i]), _TOP] if full[i] > 0]
    names = [*map(view.short, view.top), "other sites"]

    highest = max(int(timeline.allocated.max()), int(timeline.reserved.max()), 1)
    limit = snapshot.capacity if highest <= snapshot.capacity <= 1.5 * highest else 0
    top = max(highest, limit)
    clock = np.maximum.accumulate(timeline.time_ns) - timeline.time_ns[0]
    span, last = int(clock[-1]), timeline.moments - 1
    plots = [("moment", np.arange(last + 1) / last, [(n / last, label) for n, label in axes.count_ticks(last)])]
    if span:
        plots.insert(0, ("time", clock / span, [(ns / span, label) for ns, label in axes.time_ticks(span)]))
    drawings = [_plot(name, x, ticks, curves, order, top, limit, view, found) for name, x, ticks in plots]

    chosen = '<input type="radio" name="axis" id="by-{0}"{1}><label for="by-{0}">by {2}</label>'
    switch = chosen.format("time", " checked", "time") + chosen.format("moment", "", "entry") if span else ""
    legend = [(f"k{i}", names[i]) for i in sorted(order)] + [("line", "reserved")]
    legend += [("line limit", f"device: {axes.short_bytes(limit)}")] * (limit > 0)
    keys = "".join(f'<li><i class="key {key}"></i><span title="{_t(name)}">{_t(name)}</span></li>' for key, name in legend)
    body = f'<h2>{heading}</h2>{switch}{"".join(drawings)}<ul class="legend">{keys}</ul>'
    return f'<section class="card"><figure class="chart">{body}</figure></section>\n', {
        "time": clock[curves.moments].tolist(),
        "moment": curves.moments.tolist(),
        "layers": curves.layers[order].tolist(),
        "reserved": timeline.reserved[curves.moments].tolist(),
        "keys": [f"k{i}" for i in order],
        "labels": [names[i] for i in order],
    }


def _plot(
    name: str,
    x: NDArray[np.float64],
    ticks: list[axes.Tick],
    curves: chart.Curves,
    order: list[int],
    top: int,
    limit: int,
    view: _View,
    found: list[analyse.Oom],
) -> str:
    timeline, numbers, room = view.timeline, view.numbers, top * 1.03
    across = x[curves.moments]
    levels = np.cumsum(curves.layers[order], axis=0) / room
    paths = [f'<path class="layer k{i}" d="{chart.area(across, levels[at])}"/>' for at, i in enumerate(order)]
    marks = axes.byte_ticks(top)
    grid = "".join(f"M0 {round((1 - n / room) * chart.HEIGHT)}H{chart.WIDTH}" for n, _ in marks)
    line = chart.line(x[curves.reserved_at], curves.reserved / room)
    limits = f'<path class="capacity" d="M0 {round((1 - limit / room) * chart.HEIGHT)}H{chart.WIDTH}"/>' if limit else ""
    ys = "".join(f'<span class="ytick" style="bottom:{n / room:.2%}">{label}</span>' for n, label in marks)
    xs = "".join(
        f'<span class="xtick{" odd" * (i % 2)}{" first" * (at == 0)}{" last" * (at > 0.97)}" style="left:{at:.2%}">{label}</span>'
        for i, (at, label) in enumerate(ticks)
    )
    flags = _flag(x[timeline.peak], f"peak {format_bytes(numbers.peak)}", "") if numbers.peak else ""
    flags += "".join(
        _flag(x[oom.at], f"out of memory: {format_bytes(oom.wanted)}" if oom is found[-1] else "", "oom") for oom in found
    )
    words = f"Memory by {name}: {format_bytes(numbers.peak)} at the peak, {format_bytes(numbers.current)} at the end"
    return (
        f'<div class="plot {name}"><div class="field" data-axis="{name}" tabindex="0" role="application" aria-label="{words}; '
        f'arrow keys look closer"><svg viewBox="0 0 {chart.WIDTH} {chart.HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="grid" d="{grid}"/>{"".join(reversed(paths))}<path class="floor" d="M0 {chart.HEIGHT}H{chart.WIDTH}"/>'
        f'<path class="reserved" d="{line}"/>{limits}</svg>'
        f"{ys}{xs}{flags}</div></div>"
    )


def _flag(at: float, label: str, kind: str) -> str:
    at = float(at)
    words = f"<span>{_t(label)}</span>" if label else ""
    return f'<div class="flag {kind}{" left" * (at > 0.6)}" style="left:{at:.2%}">{words}</div>'


def _at_peak(view: _View) -> str:
    uses, shown = view.uses, view.uses[:_PEAK_ROWS]
    heading = "Who held what at the peak" if view.recorded else "Who holds what now"
    if not uses:
        return f'<section class="card"><h2>{heading}</h2><p class="empty">Nothing was allocated.</p></section>\n'
    most = max(1, shown[0].live_bytes)
    rows = "".join(
        f"<tr><td>{_site(view, use.frame)}</td>"
        f'<td class="bar"><i class="{_key(view, use.label)}" style="width:{use.live_bytes / most:.2%}"></i></td>'
        f'{_cell(use.live_bytes, format_bytes(use.live_bytes))}{_cell(use.share, f"{use.share:.1%}")}'
        f'{_cell(use.count, f"{use.count:,}")}{_cell(use.largest, format_bytes(use.largest))}</tr>'
        for use in shown
    )
    strip = "".join(
        f'<i class="{_key(view, use.label)}" style="width:{use.share:.2%}" title="{_t(use.label)}"></i>' for use in shown
    )
    rest = uses[_PEAK_ROWS:]
    foot = ""
    if rest:
        total, count, share = sum(u.live_bytes for u in rest), sum(u.count for u in rest), sum(u.share for u in rest)
        strip += f'<i class="k{_TOP}" style="width:{share:.2%}" title="{len(rest):,} more sites"></i>'
        foot = (
            f'<tfoot class="rest"><tr><td>{len(rest):,} more sites</td><td class="bar"></td><td>{format_bytes(total)}</td>'
            f"<td>{share:.1%}</td><td>{count:,}</td><td>{format_bytes(max(u.largest for u in rest))}</td></tr></tfoot>"
        )
    return _table(view, heading, f'<div class="strip">{strip}</div>', ("site", "", "bytes↓", "share", "count", "largest"), rows, foot)


def _whole_run(view: _View) -> str:
    shown, more = view.totals[:_TOTAL_ROWS], len(view.totals) - _TOTAL_ROWS
    if not shown:
        return ""
    rows = "".join(
        f"<tr><td>{_site(view, whole.frame)}</td>{_cell(whole.allocations, f'{whole.allocations:,}')}"
        f"{_cell(whole.total_bytes, format_bytes(whole.total_bytes))}"
        f"{_cell(whole.total_bytes / whole.allocations, format_bytes(whole.total_bytes // whole.allocations))}"
        + (
            _cell(-1, "never freed")
            if whole.mean_lifetime_ns is None
            else _cell(whole.mean_lifetime_ns, format_duration(whole.mean_lifetime_ns))
        )
        + "</tr>"
        for whole in shown
    )
    foot = f'<tfoot class="rest"><tr><td colspan="5">{more:,} more sites</td></tr></tfoot>' if more > 0 else ""
    names = ("site", "allocations", "bytes in all↓", "mean size", "mean lifetime")
    return _table(view, "Sites over the whole run", "", names, rows, foot)


def _table(view: _View, heading: str, above: str, names: tuple[str, ...], rows: str, foot: str) -> str:
    head = "".join(
        f'<th scope="col"{" aria-sort=descending" * name.endswith("↓")}><button type="button">{name.rstrip("↓")}</button></th>'
        if name
        else '<th class="bar"></th>'
        for name in names
    )
    folder = f'<p>Files are in <span class="path">{_t(view.home)}</span></p>' if view.home else ""
    return (
        f'<section class="card long"><h2>{heading}</h2>{folder}{above}<div class="scroll" tabindex="0"><table><thead><tr>{head}'
        f"</tr></thead><tbody>{rows}</tbody>{foot}</table></div></section>\n"
    )


def _cell(value: float, words: str) -> str:
    return f'<td data-v="{value:.6g}">{words}</td>' if isinstance(value, float) else f'<td data-v="{value}">{words}</td>'


def _key(view: _View, label: str) -> str:
    return f"k{view.top.index(label) if label in view.top else _TOP}"


def _site(view: _View, frame: Frame) -> str:
    key = f'<i class="key {_key(view, label_of(frame))}"></i>'
    if not frame.line:
        return f'<span class="site">{key}<span>{_t(label_of(frame))}</span></span>'
    folder, cut, file = view.short(frame.file.replace("\\", "/")).rpartition("/")
    place = f'<span class="path" title="{_t(frame.file)}"><s>{_t(folder + cut)}</s>{_t(file)}:{frame.line}</span>'
    return f'<span class="site">{key}{place}<span class="name">{_t(frame.name)}</span></span>'


def _segments(view: _View) -> tuple[list[str], str]:
    """The block map, and the labels that its pieces are numbered by."""
    snapshot, every = view.snapshot, analyse.layout(view.snapshot)
    labels = [view.short(label_of(frame)) for frame in view.known.frames] + ["given back, still in use by the device"]
    heading = "Segments"
    if not every:
        return [], f'<section class="card"><h2>{heading}</h2><p class="empty">Nothing is reserved.</p></section>\n'
    largest = set(sorted(range(len(every)), key=lambda i: (-every[i].nbytes, i))[:_SEGMENTS])
    row = max(max(s.nbytes for s in every), sum(s.nbytes for s in every) / 8, 1)
    blocks = snapshot.blocks
    bounds = np.searchsorted(blocks["segment"], np.arange(len(every) + 1))
    stack = np.where(blocks["stack"] == 0, -1, blocks["stack"].astype(np.int64))
    site = np.where(blocks["state"] == State.AWAITING, len(labels) - 1, view.known.of_stack[stack])
    boxes, pieces = [], 0
    for i, segment in enumerate(every):
        if i not in largest or pieces > _PIECES:
            continue
        mine = slice(bounds[i], bounds[i + 1])
        drawn = _pieces(view, blocks[mine], site[mine], segment)
        pieces += len(drawn)
        words = (
            f"{segment.address:#x} · {format_bytes(segment.nbytes)} · {_of(segment.used, segment.nbytes, 'used')} · "
            f"largest free piece {format_bytes(segment.largest)}"
        )
        boxes.append(
            f'<div class="segment" role="img" style="flex:0 0 calc({segment.nbytes / row:.2%} - 5px)" aria-label="{words}">'
            f'<svg viewBox="0 0 {_FINE} 1" preserveAspectRatio="none">{"".join(drawn)}</svg></div>'
        )
    some = f" The {len(boxes):,} largest of {len(every):,} are shown." if len(boxes) < len(every) else ""
    note = f"Each box is a piece of device memory we hold, as wide as it is large; what is pale in it is free.{some}"
    count = f"{len(every):,} segment{'s' * (len(every) > 1)}"
    return labels, f'<section class="card"><h2>{count}</h2><p>{note}</p><div class="map">{"".join(boxes)}</div></section>\n'


def _pieces(view: _View, blocks: NDArray[np.void], site: NDArray[np.int64], segment: analyse.Layout) -> list[str]:
    """Rectangles for the blocks in use; of those that begin within a hair of each other, one."""
    starts = ((blocks["address"] - np.uint64(segment.address)) / max(1, segment.nbytes) * _FINE).astype(int)
    last = np.append(starts[1:] != starts[:-1], [True])[: len(starts)]
    blocks, site, starts = blocks[last], site[last], starts[last]
    widths = np.diff(np.append(starts, _FINE))
    rank = np.append(view.rank, _TOP)
    return [
        f'<rect class="{"awaiting" if block["state"] == State.AWAITING else f"k{rank[site[at]]}"}" x="{starts[at]}" '
        f'width="{widths[at]}" height="1" data-s="{site[at]}" data-n="{block["nbytes"]}"/>'
        for at, block in enumerate(blocks)
        if block["state"] != State.FREE and widths[at]
    ]


def _footer(view: _View) -> str:
    notes = {name: value for name, value in sorted(view.snapshot.notes.items()) if name != "program"}
    words = " · ".join(f"{name} {value}" for name, value in notes.items())
    how = (
        "Allocated is what the program asked for and has not given back; reserved is what penstock holds of the device. A site "
        f"is the innermost line outside {', '.join(PLUMBING[:-1])} and {PLUMBING[-1]}. Fragmentation is 1 − "
        "largest free piece ÷ all free bytes in segments."
    )
    return f"<p>{_t(words)}</p><p>{_t(how)}</p>"
