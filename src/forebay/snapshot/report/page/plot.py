"""Memory over time: stacked areas, drawn once by time and once by entry, so that both are there without a script."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forebay.byte_sizes import format_bytes
from forebay.snapshot.analysis import summary
from forebay.snapshot.report.page import axes, chart
from forebay.snapshot.report.page.view import TOP, View, foreign

__all__ = ["section"]

_FLAGS = 20  # out-of-memory marks; more would hide the curve


def section(view: View) -> tuple[str, dict[str, object]]:
    """The drawing, once by time and once by entry, and what the script needs to look closer."""
    timeline, snapshot = view.timeline, view.snapshot
    heading = "Memory over time"
    if not view.recorded:
        words = view.why_nothing
        empty: dict[str, object] = dict.fromkeys(("time", "moment", "layers", "reserved", "keys", "labels"), ())
        return f'<section class="card"><h2>{heading}</h2><p class="empty">{words}</p></section>\n', empty

    found = summary.ooms(snapshot)[-_FLAGS:]
    rank = view.rank[view.known.of_stack[timeline.allocations.stack]]
    curves = chart.curves(timeline, rank, TOP + 1, [timeline.peak, timeline.moments - 1, *(oom.at for oom in found)])
    # What stays lies at the bottom, what comes and goes on top of it: every layer is then easy to follow.
    full = curves.layers.max(axis=1)
    steady = [-float(curves.layers[i].mean()) / full[i] if full[i] else 0.0 for i in range(TOP)]
    order = [i for i in [*sorted(range(TOP), key=lambda i: steady[i]), TOP] if full[i] > 0]
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
    keys = "".join(
        f'<li><i class="key {key}"></i><span title="{foreign(name)}">{foreign(name)}</span></li>'
        for key, name in legend
    )
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
    view: View,
    found: list[summary.Oom],
) -> str:
    timeline, numbers, room = view.timeline, view.numbers, top * 1.03
    across = x[curves.moments]
    levels = np.cumsum(curves.layers[order], axis=0) / room
    paths = [f'<path class="layer k{i}" d="{chart.area(across, levels[at])}"/>' for at, i in enumerate(order)]
    marks = axes.byte_ticks(top)
    grid = "".join(f"M0 {round((1 - n / room) * chart.HEIGHT)}H{chart.WIDTH}" for n, _ in marks)
    line = chart.line(x[curves.reserved_at], curves.reserved / room)
    limits = (
        f'<path class="capacity" d="M0 {round((1 - limit / room) * chart.HEIGHT)}H{chart.WIDTH}"/>' if limit else ""
    )
    ys = "".join(f'<span class="ytick" style="bottom:{n / room:.2%}">{label}</span>' for n, label in marks)
    sides = [" odd" * (i % 2) + " first" * (at == 0) + " last" * (at > 0.97) for i, (at, _) in enumerate(ticks)]
    xs = "".join(
        f'<span class="xtick{side}" style="left:{at:.2%}">{label}</span>'
        for side, (at, label) in zip(sides, ticks, strict=True)
    )
    flags = _flag(x[timeline.peak], f"peak {format_bytes(numbers.peak)}", "") if numbers.peak else ""
    flags += "".join(
        _flag(x[oom.at], f"out of memory: {format_bytes(oom.wanted)}" if oom is found[-1] else "", "oom")
        for oom in found
    )
    words = f"Memory by {name}: {format_bytes(numbers.peak)} at the peak, {format_bytes(numbers.current)} at the end"
    drawn = "".join(
        (
            f'<path class="grid" d="{grid}"/>',
            *reversed(paths),
            f'<path class="floor" d="M0 {chart.HEIGHT}H{chart.WIDTH}"/>',
            f'<path class="reserved" d="{line}"/>{limits}',
        )
    )
    return (
        f'<div class="plot {name}"><div class="field" data-axis="{name}" tabindex="0" role="application" '
        f'aria-label="{words}; arrow keys look closer">'
        f'<svg viewBox="0 0 {chart.WIDTH} {chart.HEIGHT}" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'
        f"{ys}{xs}{flags}</div></div>"
    )


def _flag(at: float, label: str, kind: str) -> str:
    left = " left" if at > 0.6 else ""
    words = f"<span>{foreign(label)}</span>" if label else ""
    return f'<div class="flag {kind}{left}" style="left:{at:.2%}">{words}</div>'
