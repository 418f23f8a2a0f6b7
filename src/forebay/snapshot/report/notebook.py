"""Snapshots as notebooks display them: key figures, memory over time as a static SVG, and the largest sites."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from forebay._base.byte_sizes import format_bytes
from forebay._base.html_repr import BLUE, RED, Html, box, escape_text, facts, figure, note, table
from forebay.records.model import Snapshot
from forebay.records.site_labels import strip_common_folder, with_library
from forebay.snapshot.analysis import summary
from forebay.snapshot.analysis.largest_sites import split_largest
from forebay.snapshot.analysis.timeline import Timeline, reconstruct
from forebay.snapshot.report.page import axes, chart
from forebay.snapshot.report.text import NO_ALLOCATIONS, format_duration

__all__ = ["site_table", "snapshot_html", "timeline_figure", "timeline_html"]

_WIDTH, _HEIGHT = 720, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 12, 20, 24  # around the field of the plot
_SITES = 5


def snapshot_html(snapshot: Snapshot) -> Html:
    """Return the display of a snapshot. Never raises: a snapshot that cannot be analysed shows the reason."""
    title = f"Memory of {snapshot.device}"
    try:
        return box(title, *_parts(snapshot))
    except Exception as error:  # noqa: BLE001 - a snapshot that a program has put together may be inconsistent
        return box(title, note(f"The snapshot cannot be analysed: {type(error).__name__}: {error}"))


def _parts(snapshot: Snapshot) -> list[Html]:
    timeline = reconstruct(snapshot)
    snapshot = split_largest(snapshot, timeline)
    numbers = summary.summary(snapshot, timeline=timeline)
    taken = datetime.fromtimestamp(snapshot.taken_at_ns // 10**9, UTC)
    head = [("taken", f"{taken:%Y-%m-%d %H:%M:%S} UTC")]
    if snapshot.capacity:
        head.append(("device memory", format_bytes(snapshot.capacity)))
    if len(snapshot.trace):
        head.append(("history", f"{format_duration(numbers.span_ns)}, {len(snapshot.trace):,} entries"))
    parts = [facts(head), summary.figures_html(numbers)]
    if len(snapshot.trace):
        start, end = int(timeline.time_ns[0]), int(timeline.time_ns.max())
        parts.append(timeline_figure(timeline, start, end))
    uses = summary.sites(snapshot, timeline=timeline)
    heading = "allocated at the peak, by site" if len(snapshot.trace) else "allocated, by site"
    parts.append(site_table(uses, heading, _SITES) if uses else note(NO_ALLOCATIONS))
    return parts


def timeline_html(timeline: Timeline) -> Html:
    """Return the display of a timeline. Never raises."""
    title = "Memory over time"
    try:
        count = len(timeline.allocations.start)
        head = [
            ("moments", f"{timeline.moments:,}"),
            ("allocations", f"{count:,}"),
            ("peak", f"{format_bytes(int(timeline.allocated[timeline.peak]))} after entry {timeline.peak:,}"),
        ]
        if timeline.moments < 2:
            return box(title, facts(head), note("No history was recorded."))
        return box(title, facts(head), timeline_figure(timeline, int(timeline.time_ns[0]), int(timeline.time_ns.max())))
    except Exception as error:  # noqa: BLE001 - a timeline that a program has put together may be inconsistent
        return box(title, note(f"The timeline cannot be drawn: {type(error).__name__}: {error}"))


def site_table(uses: Sequence[summary.SiteUse], heading: str, rows: int) -> Html:
    """Return the first rows of live memory by site, and the sum of the others."""
    shown, rest = uses[:rows], uses[rows:]
    folder, labels = strip_common_folder([use.label for use in shown])
    lines = [
        (with_library(name, use.library), format_bytes(use.live_bytes), f"{use.share:.1%}", f"{use.count:,}")
        for name, use in zip(labels, shown, strict=True)
    ]
    if rest:
        total, share, count = sum(u.live_bytes for u in rest), sum(u.share for u in rest), sum(u.count for u in rest)
        sites = f"{len(rest):,} other site{'s' * (len(rest) > 1)}"
        lines.append((sites, format_bytes(total), f"{share:.1%}", f"{count:,}"))
    found = table((heading, "bytes", "share", "count"), lines)
    return Html(found + note(f"Files are in {folder}")) if folder else found


def timeline_figure(timeline: Timeline, start_ns: int, end_ns: int) -> Html:
    """Return allocated and reserved bytes between two moments of Unix time, with the peak of the allocated ones."""
    curves = chart.sample_curves(timeline, np.zeros(len(timeline.allocations.start), np.int64), 1, [timeline.peak])
    span = max(end_ns - start_ns, 1)
    clock = np.maximum.accumulate(timeline.time_ns)
    across = np.clip((clock - start_ns) / span, 0.0, 1.0)
    across[0] = 0.0  # the first moment lasts from the start to the first entry
    top = max(int(timeline.allocated.max()), int(timeline.reserved.max()), 1)
    height = top * 1.05

    width, depth = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(share: float) -> str:
        return f"{_LEFT + share * width:.1f}"

    def y(nbytes: float) -> str:
        return f"{_TOP + (1 - nbytes / height) * depth:.1f}"

    grid = "".join(
        f'<path d="M{_LEFT} {y(value)}h{width}" stroke="currentColor" stroke-opacity=".15"/>'
        f'<text x="{_LEFT - 8}" y="{y(value)}" dy=".35em" text-anchor="end" fill="currentColor" fill-opacity=".75">'
        f"{label}</text>"
        for value, label in axes.byte_ticks(top)
    )
    ticks = "".join(
        f'<text x="{x(value / span)}" y="{_HEIGHT - 8}" text-anchor="{_anchor(value / span)}" fill="currentColor" '
        f'fill-opacity=".75">{label}</text>'
        for value, label in axes.time_ticks(span)
    )
    area = chart.area_path(across[curves.moments], curves.layers[0] / height)
    line = chart.line_path(across[curves.reserved_at], curves.reserved / height)
    field = (
        f'<svg x="{_LEFT}" y="{_TOP}" width="{width}" height="{depth}" viewBox="0 0 {chart.WIDTH} {chart.HEIGHT}" '
        f'preserveAspectRatio="none" overflow="visible"><path d="{area}" fill="{BLUE}" fill-opacity=".45" '
        f'stroke="{BLUE}" vector-effect="non-scaling-stroke"/><path d="{line}" fill="none" stroke="currentColor" '
        'stroke-width="1.5" stroke-dasharray="5 3" vector-effect="non-scaling-stroke"/></svg>'
    )
    peak = int(timeline.allocated[timeline.peak])
    caption = f"Memory over {format_duration(span)}: at most {format_bytes(peak)} allocated"
    flag = ""
    if peak:
        at = float(across[timeline.peak])
        side, shift = ("end", -6) if at > 0.6 else ("start", 6)
        flag = (
            f'<circle cx="{x(at)}" cy="{y(peak)}" r="3.5" fill="{RED}"/><text x="{x(at)}" dx="{shift}" '
            f'y="{y(peak)}" dy="-6" text-anchor="{side}" fill="currentColor" font-weight="600">'
            f"{escape_text(f'peak {format_bytes(peak)}')}</text>"
        )
    legend = (
        f'<rect x="{_LEFT}" y="2" width="10" height="10" fill="{BLUE}" fill-opacity=".6"/>'
        f'<text x="{_LEFT + 15}" y="11" fill="currentColor">allocated</text>'
        f'<path d="M{_LEFT + 80} 7h16" stroke="currentColor" stroke-width="1.5" stroke-dasharray="5 3"/>'
        f'<text x="{_LEFT + 102}" y="11" fill="currentColor">reserved</text>'
    )
    return figure(caption, _WIDTH, _HEIGHT, grid + field + ticks + flag + legend)


def _anchor(share: float) -> str:
    return "start" if share < 0.02 else "end" if share > 0.98 else "middle"
