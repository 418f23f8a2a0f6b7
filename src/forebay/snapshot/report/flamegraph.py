"""Flame graphs of memory by allocation stack, as self-contained SVG files. The same input gives the same bytes.

The input is folded stacks, one per line: frames from the outermost to the innermost, joined by ";", a space, and bytes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay._base.byte_sizes import format_bytes
from forebay._base.html_repr import escape_text
from forebay.snapshot.formats.budget import BadSnapshot

__all__ = [
    "block_frames",
    "check_size",
    "draw",
    "fold",
    "fold_segments",
    "fold_streams",
    "frame_text",
    "frame_texts",
    "is_shown",
    "old_block_frames",
]

_MAX_TEXT = 1 << 29  # characters of folded stacks
_MAX_BYTES = 1 << 47  # of all segments: the text has a character for each 20 MiB
_FILE_AND_LINE = re.compile(r"^.*:\d+:(?=.)")  # the file and line of a frame
_WIDTH, _ROW, _MARGIN, _TOP = 1200.0, 18, 12.0, 64
_CHAR_WIDTH = 6.65  # px, at font size 11 px
_MIN_WIDTH = 0.3  # px; narrower boxes are invisible
_HUES = (28, 12, 40, 350, 20, 48, 5, 34)
_COLORS = 2 * len(_HUES)


def _palette(saturation: int, light: int) -> str:
    """Return CSS rules for each hue in two shades."""
    colors = ((hue, light + 8 * shade) for shade in range(2) for hue in _HUES)
    return " ".join(
        f".c{at}{{fill:hsl({hue} {saturation}% {lightness}%)}}" for at, (hue, lightness) in enumerate(colors)
    )


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

_HIDDEN_FUNCTIONS = (
    "unwind::unwind", "CapturedTraceback::gather", "gather_with_cpp", "_start", "__libc_start_main", "PyEval_",
    "PyObject_", "PyFunction_",
)  # fmt: skip
_HIDDEN_FILES = (
    "core/boxing", "/Register", "/Redispatch", "pythonrun.c", "Modules/main.c", "Objects/call.c",
    "Objects/methodobject.c", "pycore_ceval.h", "ceval.c", "cpython/abstract.h",
)  # fmt: skip


def check_size(snapshot: Mapping[str, Any]) -> None:
    """Raise BadSnapshot if the text of a snapshot from a file would be too long, as lists and frames may be shared."""
    lengths: dict[int, int] = {}
    total = 0
    blocks = (block for row in snapshot["segments"] for block in row["blocks"])
    entries = (entry for trace in snapshot.get("device_traces", ()) for entry in trace)
    for row in (*blocks, *entries):
        frames = row.get("frames", ())
        if id(frames) not in lengths:
            lengths[id(frames)] = sum(len(frame["filename"]) + len(frame["name"]) + 24 for frame in frames)
        total += lengths[id(frames)] + 100 + sum(len(text) for text in row.values() if isinstance(text, str))
        if total > _MAX_TEXT or row.get("size", 0) > _MAX_BYTES:
            raise BadSnapshot("the stacks are too long, or a size is out of range")
    if sum(row["total_size"] for row in snapshot["segments"]) > _MAX_BYTES:
        raise BadSnapshot("the sizes of the segments are out of range")


def fold_segments(snapshot: Mapping[str, Any]) -> str:
    """Return the folded stacks of a snapshot in PyTorch's schema, by segment."""
    return "".join(fold(f"stream_{row['stream']};seg_{row['address']}", row["blocks"]) for row in snapshot["segments"])


def fold_streams(snapshot: Mapping[str, Any]) -> str:
    """Return the folded stacks of a snapshot in PyTorch's schema, by stream."""
    return "".join(fold(f"stream_{row['stream']}", row["blocks"]) for row in snapshot["segments"])


def fold(prefix: str, blocks: Iterable[Mapping[str, Any]]) -> str:
    """Return the folded lines of blocks: state, stack and bytes, and the bytes added by rounding as "<gaps>"."""
    lines = []
    for block in blocks:
        start, total = f"{prefix};{block['state']}", 0
        for stack, nbytes in _stacks_and_bytes(block):
            lines.append(f"{start};{stack} {nbytes}\n")
            total += nbytes
        if gap := block["size"] - total:
            lines.append(f"{start};<gaps> {gap}\n")
    return "".join(lines)


def block_frames(block: Mapping[str, Any]) -> tuple[Sequence[Mapping[str, Any]], int]:
    """Return the allocation stack and the requested bytes of a block, in snapshots of all versions."""
    return (block["frames"], block["requested_size"]) if "frames" in block else old_block_frames(block)


def old_block_frames(block: Mapping[str, Any]) -> tuple[Sequence[Mapping[str, Any]], int]:
    """Return what `block_frames` does for a block of a snapshot by PyTorch before 2.1."""
    if "history" in block:
        newest = block["history"][0]
        return newest.get("frames", []), newest["real_size"]
    return [], block.get("requested_size", block["size"])


def _stacks_and_bytes(block: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the folded stack and bytes of a block; before PyTorch 2.1 a block may have several."""
    if "history" not in block:
        frames, nbytes = block_frames(block)
        yield _stack(frames), nbytes
        return
    for event in block["history"]:
        yield _stack(event["frames"]) if "frames" in event else "<no-context>", event["real_size"]


def _stack(frames: Sequence[Mapping[str, Any]]) -> str:
    return ";".join(frame_texts(frames, reverse=True)) if frames else "<non-python>"


def frame_texts(frames: Sequence[Mapping[str, Any]], full_filename: bool = False, reverse: bool = False) -> list[str]:
    """Return the text of each frame that is shown, innermost first unless `reverse`."""
    return [
        frame_text(frame, full_filename)
        for frame in (reversed(frames) if reverse else frames)
        if is_shown(frame["name"], frame["filename"])
    ]


def frame_text(f: Mapping[str, Any], full_filename: bool = False) -> str:
    """Return file, line and function of a frame as "file:line:function"."""
    file = f["filename"] if full_filename else f["filename"].rpartition("/")[2]
    return f"{file}:{f['line']}:{f['name']}"


def is_shown(name: str, filename: str) -> bool:
    """Return False for a function of the Python interpreter or of PyTorch's dispatcher."""
    hidden = any(part in name for part in _HIDDEN_FUNCTIONS) or any(part in filename for part in _HIDDEN_FILES)
    return not hidden


@dataclass(slots=True)
class _Box:
    """A box of the graph: all stacks with the same outer frames."""

    name: str
    nbytes: int = 0
    inside: dict[str, _Box] = field(default_factory=dict)

    def depth(self) -> int:
        levels, deepest = [self], 0
        while levels := [box for level in levels for box in level.inside.values()]:
            deepest += 1
        return deepest


def draw(folded: str) -> str:
    """Return the SVG. Each box is above its caller's; its name and bytes are shown as a tooltip."""
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
    subtitle = f"{format_bytes(root.nbytes)} in total" if root.nbytes else "There is no memory to show."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height}" width="{_WIDTH:g}" '
        f'height="{height}" role="img">\n<title>Memory by allocation stack</title>\n<style>{_STYLE}</style>\n'
        f'<text class="title" x="{_MARGIN:g}" y="28">Memory by allocation stack</text>\n'
        f'<text class="soft" x="{_MARGIN:g}" y="47">{subtitle}</text>\n'
        + ("".join(_boxes(root, height - 16 - _ROW)) if root.nbytes else "")
        + "</svg>\n"
    )


def _boxes(root: _Box, bottom: float) -> Iterator[str]:
    scale = (_WIDTH - 2 * _MARGIN) / root.nbytes
    pending = [(root, _MARGIN, bottom, "root")]
    while pending:
        box, left, top, kind = pending.pop()
        width = box.nbytes * scale
        if width < _MIN_WIDTH:
            continue
        yield _box(box, left, top, width, kind, box.nbytes / root.nbytes)
        for name in sorted(box.inside):
            inner = box.inside[name]
            idle = kind == "idle" or name in ("inactive", "<gaps>")
            pending.append((inner, left, top - _ROW, "idle" if idle else "used"))
            left += inner.nbytes * scale


def _box(box: _Box, left: float, top: float, width: float, kind: str, share: float) -> str:
    name = _clean(box.name)
    tooltip = f"{name}: {format_bytes(box.nbytes)}, {share:.1%}"
    color = kind if kind != "used" else _color(box.name)
    max_chars = int((width - 6) / _CHAR_WIDTH)
    text = ""
    if max_chars >= 3:
        ink = ' class="label"' if kind == "used" else ""
        text = f'<text{ink} x="{left + 3:.1f}" y="{top + 12.5:.1f}">{_clean(_shortened(box.name, max_chars))}</text>'
    position = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{_ROW}" rx="1.5"'
    return f'<g><title>{tooltip}</title><rect class="{color}" {position}/>{text}</g>\n'


def _clean(text: str) -> str:
    """Escape text for XML."""
    return escape_text(text)


def _shortened(name: str, max_chars: int) -> str:
    """Shorten a name to `max_chars` characters: first remove the file, then cut the end."""
    if len(name) > max_chars:
        name = _FILE_AND_LINE.sub("", name)
    return name if len(name) <= max_chars else f"{name[: max_chars - 1]}…"


def _color(name: str) -> str:
    """Return the CSS class of the color of a name, the same in every graph."""
    return f"c{zlib.crc32(name.encode('utf-8', 'replace')) % _COLORS}"
