"""What a reader of the page must know first: why memory ran out, and what the history does not contain."""

from __future__ import annotations

import numpy as np

from forebay.byte_sizes import format_bytes
from forebay.html_repr import escape_text
from forebay.snapshot.analysis import summary
from forebay.snapshot.report.page.view import View
from forebay.snapshot.report.text import format_duration

__all__ = ["section"]

_UNLIMITED = 1 << 60  # bytes: a device has less


def section(view: View) -> str:
    """Return the explanation of the last out-of-memory event, and remarks about the history."""
    parts = []
    if found := summary.ooms(view.snapshot):
        count = f" ({len(found):,} times; this is the last)" if len(found) > 1 else ""
        explanation = escape_text(_explanation(view, found[-1]))
        parts.append(f'<section class="alarm"><h2>Out of memory{count}</h2><p>{explanation}</p></section>')
    parts += [f'<p class="remark">{escape_text(text)}</p>' for text in _remarks(view)]
    return "\n".join(parts)


def _explanation(view: View, oom: summary.Oom) -> str:
    snapshot, timeline = view.snapshot, view.timeline
    unused = int(timeline.reserved[oom.at] - timeline.allocated[oom.at])
    when = f"{format_duration(oom.time_ns - int(timeline.time_ns[0]))} into the history"
    where = "The program" if oom.label.startswith("(") else view.short(oom.label)
    text = f"{where} requested {format_bytes(oom.wanted)}, {when}. "
    if snapshot.capacity:
        text += f"Of {format_bytes(snapshot.capacity)}, {format_bytes(oom.device_free)} was free on the device and "
    elif oom.device_free < _UNLIMITED:
        text += f"{format_bytes(oom.device_free)} was free on the device and "
    else:
        text += "The device has no limit; the system refused the memory. Of the device's memory, "
    text += f"{format_bytes(max(0, unused))} was reserved but not allocated"
    text += ", which would have been enough in one free block." if unused >= oom.wanted else "."
    if snapshot.capacity and oom.device_free >= oom.wanted:
        text += " The free device memory was enough for the block, but not for a new segment."
    return text


def _remarks(view: View) -> list[str]:
    """Return what the history does not contain."""
    numbers, timeline = view.numbers, view.timeline
    remarks = []
    held = timeline.allocations
    older = held.start == 0
    if numbers.lost:
        remarks.append(f"The ring buffer dropped the first {numbers.lost:,} entries of the history.")
    if view.recorded and older.any():
        blocks = "1 block is" if older.sum() == 1 else f"{int(older.sum()):,} blocks are"
        remarks.append(
            f"{blocks} older than the recorded history ({format_bytes(int(held.nbytes[older].sum()))}): the chart "
            "draws such memory from its left edge, and its stack may be unknown."
        )
    if numbers.peak_ever > numbers.peak and view.recorded:
        remarks.append(f"The highest peak, {format_bytes(numbers.peak_ever)}, was before the recorded history.")
    excess = timeline.allocated - timeline.reserved
    if view.recorded and int(excess.max()) > 0:
        worst = int(np.argmax(excess))
        allocated, reserved = (format_bytes(int(curve[worst])) for curve in (timeline.allocated, timeline.reserved))
        remarks.append(
            f"The history contradicts its segments: at entry {worst:,} it has {allocated} allocated in {reserved} "
            "of segments. Frees or segments are missing in the file; the page shows no more than the segments hold."
        )
    return remarks
