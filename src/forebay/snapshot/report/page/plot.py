"""The plot of memory over time: stacked areas, drawn both by time and by entry, as switching needs no script."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forebay.byte_sizes import format_bytes
from forebay.html_repr import escape_text
from forebay.snapshot.analysis import summary
from forebay.snapshot.report.page import axes, chart
from forebay.snapshot.report.page.view import TOP, View

__all__ = ["section"]

_MAX_FLAGS = 20  # out-of-memory markers; more would hide the curve


def section(view: View) -> tuple[str, dict[str, object]]:
    """Return the section, with one drawing by time and one by entry, and the data for the script's tooltips."""
    timeline, snapshot = view.timeline, view.snapshot
    heading = "Memory over time"
    if not view.recorded:
        reason = view.empty_reason
        empty: dict[str, object] = dict.fromkeys(("time", "moment", "layers", "reserved", "keys", "labels"), ())
        return f'<section class="card"><h2>{heading}</h2><p class="empty">{reason}</p></section>\n', empty

    found = summary.ooms(snapshot)[-_MAX_FLAGS:]
    rank = view.rank[view.sites.of_stack[timeline.allocations.stack]]
    curves = chart.sample_curves(
        timeline, rank, TOP + 1, [timeline.peak, timeline.moments - 1, *(oom.at for oom in found)]
    )
    # Steady layers at the bottom, varying ones on top, so that each layer is easy to follow.
    full = curves.layers.max(axis=1)
    steady = [-float(curves.layers[i].mean()) / full[i] if full[i] else 0.0 for i in range(TOP)]
    order = [i for i in [*sorted(range(TOP), key=lambda i: steady[i]), TOP] if full[i] > 0]
    names = {TOP: "other sites", **dict(enumerate(map(view.short, view.top)))}

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
        f'<li><i class="key {key}"></i><span title="{escape_text(name)}">{escape_text(name)}</span></li>'
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
    timeline, numbers, height = view.timeline, view.numbers, top * 1.03
    across = x[curves.moments]
    levels = np.cumsum(curves.layers[order], axis=0) / height
    paths = [f'<path class="layer k{i}" d="{chart.area_path(across, levels[at])}"/>' for at, i in enumerate(order)]
    y_ticks = axes.byte_ticks(top)
    grid = "".join(f"M0 {round((1 - n / height) * chart.HEIGHT)}H{chart.WIDTH}" for n, _ in y_ticks)
    line = chart.line_path(x[curves.reserved_at], curves.reserved / height)
    limits = (
        f'<path class="capacity" d="M0 {round((1 - limit / height) * chart.HEIGHT)}H{chart.WIDTH}"/>' if limit else ""
    )
    ys = "".join(f'<span class="ytick" style="bottom:{n / height:.2%}">{label}</span>' for n, label in y_ticks)
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
    caption = f"Memory by {name}: {format_bytes(numbers.peak)} at the peak, {format_bytes(numbers.current)} at the end"
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
        f'aria-label="{caption}; use the arrow keys to inspect">'
        f'<svg viewBox="0 0 {chart.WIDTH} {chart.HEIGHT}" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'
        f"{ys}{xs}{flags}</div></div>"
    )


def _flag(at: float, label: str, kind: str) -> str:
    left = " left" if at > 0.6 else ""
    text = f"<span>{escape_text(label)}</span>" if label else ""
    return f'<div class="flag {kind}{left}" style="left:{at:.2%}">{text}</div>'
