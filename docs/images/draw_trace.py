"""Trace a small program and draw the trace: `python docs/images/draw_trace.py trace.png [FILE.pftrace]`.

The file is decoded with Perfetto's own schema, without forebay; Chromium renders the picture.
"""

from __future__ import annotations

import html
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.perfetto_files import Decoded, Slice, decode

import forebay
from forebay import cuda
from forebay.observe import trace

WIDTH, LABELS, ROW, TOP = 1400, 290, 26, 60
COLOURS = {
    "copy": "#4c78a8",
    "fill": "#72b7b2",
    "draw": "#e0913a",
    "call": "#54a24b",
    "wait": "#d9d9d9",
    "graph": "#b279a2",
    "host": "#f2cf5b",
    "range": "#e8e1f3",
    "recording": "#eeeeee",
}


def program(path: Path) -> None:
    """Trace a pipeline that draws the next batch on one stream while another stream processes the current batch."""
    loading = cuda.Stream()
    batch = forebay.empty((1 << 20,), device="cuda")
    weights = forebay.rand((1 << 20,), device="cuda")

    def steps(count: int) -> None:
        for step in range(count):
            with cuda.nvtx.range("step {}", step):
                with cuda.nvtx.range("load"), cuda.stream(loading):
                    fresh = forebay.rand((1 << 20,), device="cuda")
                ready = loading.record_event()
                weights.normal_()
                cuda.current_stream().wait_event(ready)
                batch.copy_(fresh)
                fresh.record_stream(cuda.current_stream())
                weights[::2].fill_(0.5)
        cuda.synchronize()

    steps(4)  # warm-up
    with trace(path):
        steps(3)


def rows(found: Decoded) -> dict[str, list[Slice]]:
    """Return the slices of each track and nesting depth: the recording first, then threads, then streams."""
    grouped: dict[str, list[Slice]] = {}
    for each in found.slices:
        grouped.setdefault(f"{each.track.removeprefix('forebay/')}\0{each.depth}", []).append(each)
    return dict(sorted(grouped.items(), key=lambda item: ("stream" in item[0], "recording" not in item[0], item[0])))


def render(found: Decoded) -> str:
    """Return an HTML page with the trace as an SVG picture."""
    (recording,) = (each for each in found.slices if each.track.endswith("recording"))
    begin, end = recording.begin, recording.end or recording.begin
    parts, y, flows = [], TOP, {}

    def x(time: int) -> float:
        return LABELS + (WIDTH - LABELS - 40) * (time - begin) / (end - begin)

    for tick in range(11):
        time = begin + (end - begin) * tick // 10
        parts.append(f"<line x1={x(time):.1f} y1={TOP - 8} x2={x(time):.1f} y2=LOWEST stroke='#eee'/>")
        parts.append(f"<text x={x(time):.1f} y={TOP - 14} class=tick>{(time - begin) / 1e6:.2f} ms</text>")
    previous = ""
    for name, slices in rows(found).items():
        track = name.partition("\0")[0]
        if track != previous:
            y += 8
            parts.append(f"<text x=8 y={y + 17}>{html.escape(track)}</text>")
            previous = track
        for each in slices:
            left, width = x(each.begin), max(x(each.end or end) - x(each.begin), 1.0)
            fill = COLOURS.get(each.category, "#999")
            parts.append(f"<rect x={left:.1f} y={y} width={width:.1f} height={ROW - 4} fill='{fill}' stroke='#0003'/>")
            if width > 7 * len(each.name):
                parts.append(f"<text x={left + 4:.1f} y={y + 15} class=in>{html.escape(each.name)}</text>")
            for number in each.queued_ids or each.executed_ids:
                flows.setdefault(number, []).append((left, y))
        y += ROW
    for ends in flows.values():
        if len(ends) == 2:
            (a, b), (c, d) = ends
            curve = f"M{a:.1f},{b + ROW - 4} C{a:.1f},{d - 20} {c:.1f},{b + 50} {c:.1f},{d}"
            parts.append(f"<path d='{curve}' class=flow />")
    for name, values in found.counters.items():
        y += 10
        peak = max(value for _, value in values) or 1
        corners = [f"{x(max(values[0][0], begin)):.1f},{y + 40}"]
        last = 0
        for time, value in values:
            left = x(time)
            corners += [f"{left:.1f},{y + 40 - 36 * last / peak:.1f}", f"{left:.1f},{y + 40 - 36 * value / peak:.1f}"]
            last = value
        corners += [f"{x(end):.1f},{y + 40 - 36 * last / peak:.1f}", f"{x(end):.1f},{y + 40}"]
        parts.append(f"<polygon points='{' '.join(corners)}' fill='#cfe3f5' stroke='#4c78a8'/>")
        label = f"{name.rpartition('/')[2]}, at most {peak / (1 << 20):.0f} MiB"
        parts.append(f"<text x=8 y={y + 24}>{html.escape(label)}</text>")
        y += 44
    styles = "text{font:13px sans-serif}.tick{font-size:11px;fill:#666;text-anchor:middle}.in{font-size:12px}"
    styles += ".flow{fill:none;stroke:#c33;stroke-width:.7;opacity:.6}"
    body = "\n".join(parts).replace("LOWEST", str(y))
    title = f"<text x=8 y=22 style='font-size:16px'>{found.recording['operations']} operations</text>"
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' width={WIDTH} height={y + 20}><style>{styles}</style>"
    return f"<!doctype html><meta charset=utf-8><body style='margin:0;background:white'>{svg}{title}{body}</svg>"


def main() -> None:
    picture = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[2:]:
            trace_file = Path(sys.argv[2])
        else:
            trace_file = Path(folder) / "program.pftrace"
            with forebay.emulate("cuda", profile="h200", memory="1GiB"):
                program(trace_file)
        page = Path(folder) / "page.html"
        text = render(decode(trace_file))
        page.write_text(text)
        height = text.partition("height=")[2].partition(">")[0]
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--window-size={WIDTH},{height}", f"--screenshot={picture}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main()
