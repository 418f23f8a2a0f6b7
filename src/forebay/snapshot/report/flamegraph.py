"""Who allocated what as a flame graph: an SVG that needs no network and no other program, same bytes for the same text.

It is drawn from folded stacks, a line each: frames from the outside in, joined by ";", a space, and how many bytes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay.byte_sizes import format_bytes
from forebay.snapshot.report.page.view import foreign

__all__ = ["block_frames", "draw", "fold", "of_segments", "of_streams"]

_FRAME = re.compile(r"^.*:\d+:(?=.)")  # its file and line
_WIDTH, _ROW, _MARGIN, _TOP = 1200.0, 18, 12.0, 64
_LETTER = 6.65  # width of one, at 11 px
_LEAST = 0.3  # px: what is narrower cannot be seen
_HUES = (28, 12, 40, 350, 20, 48, 5, 34)
_COLORS = 2 * len(_HUES)


def _palette(saturation: int, light: int) -> str:
    """Each hue in two depths."""
    colors = ((hue, light + 8 * deep) for deep in range(2) for hue in _HUES)
    return " ".join(f".c{at}{{fill:hsl({hue} {saturation}% {depth}%)}}" for at, (hue, depth) in enumerate(colors))


_STYLE = f"""
svg {{ color-scheme: light dark; background: var(--page); --page: #fdfdfc; --ink: #1b2330; --soft: #5c6675;
  --label: #22160c; --idle: #dfe3e8; font: 11px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
text {{ fill: var(--ink); }} .soft {{ fill: var(--soft); }} .label {{ fill: var(--label); pointer-events: none; }}
.title {{ font: 600 17px system-ui, sans-serif; }} rect {{ stroke: var(--page); stroke-width: .6; }}
.idle, .root {{ fill: var(--idle); }} g:hover > rect {{ stroke: var(--ink); stroke-width: 1.4; }}
{_palette(82, 72)}
@media (prefers-color-scheme: dark) {{
  svg {{ --page: #10151c; --ink: #e8ecf1; --soft: #9aa5b3; --label: #fff5ea; --idle: #2f3945; }}
  {_palette(48, 29)}
}}
"""

_NO_FUNCTIONS = (
    "unwind::unwind", "CapturedTraceback::gather", "gather_with_cpp", "_start", "__libc_start_main", "PyEval_",
    "PyObject_", "PyFunction_",
)  # fmt: skip
_NO_FILES = (
    "core/boxing", "/Register", "/Redispatch", "pythonrun.c", "Modules/main.c", "Objects/call.c",
    "Objects/methodobject.c", "pycore_ceval.h", "ceval.c", "cpython/abstract.h",
)  # fmt: skip


def of_segments(snapshot: Mapping[str, Any]) -> str:
    """The folded stacks of a snapshot in PyTorch's schema, segment by segment."""
    return "".join(fold(f"stream_{row['stream']};seg_{row['address']}", row["blocks"]) for row in snapshot["segments"])


def of_streams(snapshot: Mapping[str, Any]) -> str:
    """The folded stacks of a snapshot in PyTorch's schema, stream by stream."""
    return "".join(fold(f"stream_{row['stream']}", row["blocks"]) for row in snapshot["segments"])


def fold(prefix: str, blocks: Iterable[Mapping[str, Any]]) -> str:
    """The lines of some blocks: each with its state and stack, what rounding added to it as a gap."""
    lines = []
    for block in blocks:
        start, told = f"{prefix};{block['state']}", 0
        for stack, nbytes in _holdings(block):
            lines.append(f"{start};{stack} {nbytes}\n")
            told += nbytes
        if gap := block["size"] - told:
            lines.append(f"{start};<gaps> {gap}\n")
    return "".join(lines)


def block_frames(block: Mapping[str, Any]) -> tuple[Sequence[Mapping[str, Any]], int]:
    """Where a block was allocated and how many bytes were asked for, in snapshots of all versions."""
    if "frames" in block:
        return block["frames"], block["requested_size"]
    if "history" in block:
        newest = block["history"][0]
        return newest.get("frames", []), newest["real_size"]
    return [], block.get("requested_size", block["size"])


def _holdings(block: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """A stack in words and its bytes; blocks of snapshots before 2.1 may have several."""
    if "history" not in block:
        frames, nbytes = block_frames(block)
        yield _stack(frames), nbytes
        return
    for past in block["history"]:
        yield _stack(past["frames"]) if "frames" in past else "<no-context>", past["real_size"]


def _stack(frames: Sequence[Mapping[str, Any]]) -> str:
    if not frames:
        return "<non-python>"
    return ";".join(
        f"{frame['filename'].rpartition('/')[2]}:{frame['line']}:{frame['name']}"
        for frame in reversed(frames)
        if not any(part in frame["name"] for part in _NO_FUNCTIONS)
        and not any(part in frame["filename"] for part in _NO_FILES)
    )


@dataclass(slots=True)
class _Box:
    """Stacks that begin alike."""

    name: str
    nbytes: int = 0
    inside: dict[str, _Box] = field(default_factory=dict)

    def depth(self) -> int:
        levels, deepest = [self], 0
        while levels := [box for level in levels for box in level.inside.values()]:
            deepest += 1
        return deepest


def draw(folded: str) -> str:
    """The SVG. Boxes stand on those that called them; each says its name and bytes to the mouse."""
    root = _Box("all")
    for line in folded.splitlines():
        stack, _, number = line.rpartition(" ")
        if not number.isdecimal() or not int(number):
            continue
        box, nbytes = root, int(number)
        root.nbytes += nbytes
        for name in stack.split(";"):
            box = box.inside.setdefault(name, _Box(name))
            box.nbytes += nbytes
    height = _TOP + (root.depth() + 1) * _ROW + 16
    words = f"{format_bytes(root.nbytes)} in all" if root.nbytes else "There is no memory to show."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height}" width="{_WIDTH:g}" '
        f'height="{height}" role="img">\n<title>Memory by where it was allocated</title>\n<style>{_STYLE}</style>\n'
        f'<text class="title" x="{_MARGIN:g}" y="28">Memory by where it was allocated</text>\n'
        f'<text class="soft" x="{_MARGIN:g}" y="47">{words}</text>\n'
        + ("".join(_boxes(root, height - 16 - _ROW)) if root.nbytes else "")
        + "</svg>\n"
    )


def _boxes(root: _Box, bottom: float) -> Iterator[str]:
    scale = (_WIDTH - 2 * _MARGIN) / root.nbytes
    waiting = [(root, _MARGIN, bottom, "root")]
    while waiting:
        box, left, top, kind = waiting.pop()
        width = box.nbytes * scale
        if width < _LEAST:
            continue
        yield _box(box, left, top, width, kind, box.nbytes / root.nbytes)
        for name in sorted(box.inside):
            inner = box.inside[name]
            idle = kind == "idle" or name in ("inactive", "<gaps>")
            waiting.append((inner, left, top - _ROW, "idle" if idle else "used"))
            left += inner.nbytes * scale


def _box(box: _Box, left: float, top: float, width: float, kind: str, share: float) -> str:
    name = _clean(box.name)
    said = f"{name}: {format_bytes(box.nbytes)}, {share:.1%}"
    paint = kind if kind != "used" else _color(box.name)
    room = int((width - 6) / _LETTER)
    text = ""
    if room >= 3:
        ink = ' class="label"' if kind == "used" else ""
        text = f'<text{ink} x="{left + 3:.1f}" y="{top + 12.5:.1f}">{_clean(_shortened(box.name, room))}</text>'
    place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{_ROW}" rx="1.5"'
    return f'<g><title>{said}</title><rect class="{paint}" {place}/>{text}</g>\n'


def _clean(text: str) -> str:
    """Text that XML may hold, where its letters mean nothing."""
    return foreign(text).replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd")


def _shortened(name: str, room: int) -> str:
    """What fits: of a frame rather its function than its file."""
    if len(name) > room:
        name = _FRAME.sub("", name)
    return name if len(name) <= room else f"{name[: room - 1]}…"


def _color(name: str) -> str:
    """Of a name always the same."""
    return f"c{zlib.crc32(name.encode('utf-8', 'replace')) % _COLORS}"
