"""The block map: one box per segment, as wide as its size, with blocks in the colors of their sites."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forebay.byte_sizes import format_bytes
from forebay.snapshot.analysis import summary
from forebay.snapshot.model import State
from forebay.snapshot.report.page.view import View, percentage
from forebay.snapshot.sites import label_of

__all__ = ["section"]

_MAX_SEGMENTS, _MAX_RECTS = 400, 6000  # on one page
_RESOLUTION = 2000  # horizontal positions in a box


def section(view: View) -> tuple[list[str], str]:
    """Return the site labels that the rectangles refer to by number, and the section."""
    snapshot, layouts = view.snapshot, summary.layout(view.snapshot)
    labels = [*(view.short(label_of(frame)) for frame in view.sites.frames), "freed, still in use by the device"]
    heading = "Segments"
    if not layouts:
        return [], f'<section class="card"><h2>{heading}</h2><p class="empty">Nothing is reserved.</p></section>\n'
    largest = set(sorted(range(len(layouts)), key=lambda i: (-layouts[i].nbytes, i))[:_MAX_SEGMENTS])
    row = max(*(s.nbytes for s in layouts), sum(s.nbytes for s in layouts) / 8, 1)
    blocks = snapshot.blocks
    bounds = np.searchsorted(blocks["segment"], np.arange(len(layouts) + 1))
    stack = np.where(blocks["stack"] == 0, -1, blocks["stack"].astype(np.int64))
    site = np.where(blocks["state"] == State.PENDING_FREE, len(labels) - 1, view.sites.of_stack[stack])
    boxes, rects, label_numbers = [], 0, dict[int, int]()
    for i, segment in enumerate(layouts):
        if i not in largest or rects > _MAX_RECTS:
            continue
        inside = slice(bounds[i], bounds[i + 1])
        drawn = _rects(view, blocks[inside], site[inside], segment, label_numbers)
        rects += len(drawn)
        caption = (
            f"{segment.address:#x} · {format_bytes(segment.nbytes)} · "
            f"{percentage(segment.used, segment.nbytes, 'used')} · largest free block {format_bytes(segment.largest)}"
        )
        boxes.append(
            f'<div class="segment" role="img" aria-label="{caption}" '
            f'style="flex:0 0 calc({segment.nbytes / row:.2%} - 5px)">'
            f'<svg viewBox="0 0 {_RESOLUTION} 1" preserveAspectRatio="none">{"".join(drawn)}</svg></div>'
        )
    shown = f" The {len(boxes):,} largest of {len(layouts):,} are shown." if len(boxes) < len(layouts) else ""
    note = f"Each box is a segment of reserved device memory; its width shows its size. Pale areas are free.{shown}"
    count = f"{len(layouts):,} segment{'s' * (len(layouts) > 1)}"
    return (
        [labels[index] for index in label_numbers],
        f'<section class="card"><h2>{count}</h2><p>{note}</p><div class="map">{"".join(boxes)}</div></section>\n',
    )


def _rects(
    view: View,
    blocks: NDArray[np.void],
    site: NDArray[np.int64],
    segment: summary.Layout,
    label_numbers: dict[int, int],
) -> list[str]:
    """Return rectangles for the blocks in use, one per horizontal position. Adds their sites to `label_numbers`."""
    starts = ((blocks["address"] - np.uint64(segment.address)) / max(1, segment.nbytes) * _RESOLUTION).astype(int)
    last = np.append(starts[1:] != starts[:-1], [True])[: len(starts)]
    drawn = last & (blocks["state"] != State.FREE)
    widths = np.diff(np.append(starts[last], _RESOLUTION))[drawn[last]]
    classes = [f"k{rank}" for rank in view.rank] + ["awaiting"]
    return [
        f'<rect class="{classes[index]}" x="{start}" width="{width}" height="1" '
        f'data-s="{label_numbers.setdefault(index, len(label_numbers))}" data-n="{nbytes}"/>'
        for start, width, index, nbytes in zip(
            starts[drawn].tolist(), widths.tolist(), site[drawn].tolist(), blocks["nbytes"][drawn].tolist(), strict=True
        )
        if width
    ]
