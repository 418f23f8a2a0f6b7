"""The block map: every segment a box as wide as it is large, with its blocks in the colours of their sites."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forebay.byte_sizes import format_bytes
from forebay.snapshot.analysis import summary
from forebay.snapshot.model import State
from forebay.snapshot.report.page.view import View, part_of
from forebay.snapshot.sites import label_of

__all__ = ["section"]

_SEGMENTS, _PIECES = 400, 6000  # boxes and rectangles on one page
_FINE = 2000  # places a box has


def section(view: View) -> tuple[list[str], str]:
    """The block map, and the labels that its pieces are numbered by."""
    snapshot, every = view.snapshot, summary.layout(view.snapshot)
    labels = [*(view.short(label_of(frame)) for frame in view.known.frames), "given back, still in use by the device"]
    heading = "Segments"
    if not every:
        return [], f'<section class="card"><h2>{heading}</h2><p class="empty">Nothing is reserved.</p></section>\n'
    largest = set(sorted(range(len(every)), key=lambda i: (-every[i].nbytes, i))[:_SEGMENTS])
    row = max(*(s.nbytes for s in every), sum(s.nbytes for s in every) / 8, 1)
    blocks = snapshot.blocks
    bounds = np.searchsorted(blocks["segment"], np.arange(len(every) + 1))
    stack = np.where(blocks["stack"] == 0, -1, blocks["stack"].astype(np.int64))
    site = np.where(blocks["state"] == State.AWAITING, len(labels) - 1, view.known.of_stack[stack])
    boxes, pieces, named = [], 0, dict[int, int]()
    for i, segment in enumerate(every):
        if i not in largest or pieces > _PIECES:
            continue
        mine = slice(bounds[i], bounds[i + 1])
        drawn = _pieces(view, blocks[mine], site[mine], segment, named)
        pieces += len(drawn)
        words = (
            f"{segment.address:#x} · {format_bytes(segment.nbytes)} · "
            f"{part_of(segment.used, segment.nbytes, 'used')} · largest free piece {format_bytes(segment.largest)}"
        )
        boxes.append(
            f'<div class="segment" role="img" aria-label="{words}" '
            f'style="flex:0 0 calc({segment.nbytes / row:.2%} - 5px)">'
            f'<svg viewBox="0 0 {_FINE} 1" preserveAspectRatio="none">{"".join(drawn)}</svg></div>'
        )
    some = f" The {len(boxes):,} largest of {len(every):,} are shown." if len(boxes) < len(every) else ""
    note = f"Each box is a piece of device memory we hold, as wide as it is large; what is pale in it is free.{some}"
    count = f"{len(every):,} segment{'s' * (len(every) > 1)}"
    return (
        [labels[place] for place in named],
        f'<section class="card"><h2>{count}</h2><p>{note}</p><div class="map">{"".join(boxes)}</div></section>\n',
    )


def _pieces(
    view: View, blocks: NDArray[np.void], site: NDArray[np.int64], segment: summary.Layout, named: dict[int, int]
) -> list[str]:
    """Rectangles for the blocks in use; of those that begin within a hair of each other, one. `named` numbers sites."""
    starts = ((blocks["address"] - np.uint64(segment.address)) / max(1, segment.nbytes) * _FINE).astype(int)
    last = np.append(starts[1:] != starts[:-1], [True])[: len(starts)]
    drawn = last & (blocks["state"] != State.FREE)
    widths = np.diff(np.append(starts[last], _FINE))[drawn[last]]
    kinds = [f"k{rank}" for rank in view.rank] + ["awaiting"]
    return [
        f'<rect class="{kinds[place]}" x="{start}" width="{width}" height="1" '
        f'data-s="{named.setdefault(place, len(named))}" data-n="{nbytes}"/>'
        for start, width, place, nbytes in zip(
            starts[drawn].tolist(), widths.tolist(), site[drawn].tolist(), blocks["nbytes"][drawn].tolist(), strict=True
        )
        if width
    ]
