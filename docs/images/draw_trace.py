"""Traces a small program, and draws what is in the file: `python docs/images/draw_trace.py trace.png [FILE.pftrace]`.

The file is read by Perfetto's own schema, and nothing else of forebay; Chromium makes the picture.
"""

from __future__ import annotations

import html
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.perfetto_files import Decoded, Slice, decoded

import forebay
from forebay import cuda
from forebay.observe import trace

WIDTH, NAMES, ROW, TOP = 1400, 290, 26, 60
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
    """Batches are drawn and copied on a stream of their own while the last one is worked on."""
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

    steps(4)  # what is done first takes longer
    with trace(path):
        steps(3)


def rows(found: Decoded) -> dict[str, list[Slice]]:
    """The slices of each track, those of streams last; one row for each depth."""
    made: dict[str, list[Slice]] = {}
    for each in found.slices:
        made.setdefault(f"{each.track.removeprefix('forebay/')}\0{each.depth}", []).append(each)
    return dict(sorted(made.items(), key=lambda item: ("stream" in item[0], "recording" not in item[0], item[0])))


def drawn(found: Decoded) -> str:
    """The page."""
    (whole,) = (each for each in found.slices if each.track.endswith("recording"))
    begin, end = whole.begin, whole.end or whole.begin
    lines, y, where = [], TOP, {}

    def x(at: int) -> float:
        return NAMES + (WIDTH - NAMES - 40) * (at - begin) / (end - begin)

    for tick in range(11):
        at = begin + (end - begin) * tick // 10
        lines.append(f"<line x1={x(at):.1f} y1={TOP - 8} x2={x(at):.1f} y2=LOWEST stroke='#eee'/>")
        lines.append(f"<text x={x(at):.1f} y={TOP - 14} class=tick>{(at - begin) / 1e6:.2f} ms</text>")
    before = ""
    for name, slices in rows(found).items():
        track = name.partition("\0")[0]
        if track != before:
            y += 8
            lines.append(f"<text x=8 y={y + 17}>{html.escape(track)}</text>")
            before = track
        for each in slices:
            left, wide = x(each.begin), max(x(each.end or end) - x(each.begin), 1.0)
            colour = COLOURS.get(each.category, "#999")
            lines.append(f"<rect x={left:.1f} y={y} width={wide:.1f} height={ROW - 4} fill='{colour}' stroke='#0003'/>")
            if wide > 7 * len(each.name):
                lines.append(f"<text x={left + 4:.1f} y={y + 15} class=in>{html.escape(each.name)}</text>")
            for number in each.asks or each.does:
                where.setdefault(number, []).append((left, y))
        y += ROW
    for ends in where.values():
        if len(ends) == 2:
            (a, b), (c, d) = ends
            curve = f"M{a:.1f},{b + ROW - 4} C{a:.1f},{d - 20} {c:.1f},{b + 50} {c:.1f},{d}"
            lines.append(f"<path d='{curve}' class=flow />")
    for name, values in found.counters.items():
        y += 10
        most = max(value for _, value in values) or 1
        corners = [f"{x(max(values[0][0], begin)):.1f},{y + 40}"]
        last = 0
        for at, value in values:
            corners += [f"{x(at):.1f},{y + 40 - 36 * last / most:.1f}", f"{x(at):.1f},{y + 40 - 36 * value / most:.1f}"]
            last = value
        corners += [f"{x(end):.1f},{y + 40 - 36 * last / most:.1f}", f"{x(end):.1f},{y + 40}"]
        lines.append(f"<polygon points='{' '.join(corners)}' fill='#cfe3f5' stroke='#4c78a8'/>")
        label = f"{name.rpartition('/')[2]}, at most {most / (1 << 20):.0f} MiB"
        lines.append(f"<text x=8 y={y + 24}>{html.escape(label)}</text>")
        y += 44
    styles = "text{font:13px sans-serif}.tick{font-size:11px;fill:#666;text-anchor:middle}.in{font-size:12px}"
    styles += ".flow{fill:none;stroke:#c33;stroke-width:.7;opacity:.6}"
    body = "\n".join(lines).replace("LOWEST", str(y))
    title = f"<text x=8 y=22 style='font-size:16px'>{found.recording['operations']} operations</text>"
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' width={WIDTH} height={y + 20}><style>{styles}</style>"
    return f"<!doctype html><meta charset=utf-8><body style='margin:0;background:white'>{svg}{title}{body}</svg>"


def main() -> None:
    picture = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[2:]:
            made = Path(sys.argv[2])
        else:
            made = Path(folder) / "made.pftrace"
            with forebay.emulate("cuda", profile="h200", memory="1GiB"):
                program(made)
        page = Path(folder) / "page.html"
        text = drawn(decoded(made))
        page.write_text(text)
        height = text.partition("height=")[2].partition(">")[0]
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--window-size={WIDTH},{height}", f"--screenshot={picture}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main()
