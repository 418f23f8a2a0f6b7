"""Allocations that pin memory: live blocks whose segment or page is mostly free, and so cannot return to the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import Frame, Snapshot
from forebay.records.sites import find_sites
from forebay.snapshot.replay.memory_state import MemoryState

__all__ = ["Pins", "find_pins"]

_MOSTLY_FREE = 0.5


@dataclass(frozen=True, slots=True)
class Pins:
    """Segments (of expandable segments: pages) that are mostly free and are held mainly by blocks of one site."""

    label: str  #: the site as text, see `forebay.records.sites.Sites`
    frame: Frame  #: the site
    #: Row of `Snapshot.stacks` of the largest of the blocks; `NEVER_SEEN` if it was allocated before the history.
    stack: int
    queue: int  #: stream of the segments
    pool: int  #: private pool of the segments; 0 is the default pool
    units: int  #: number of segments or pages
    free_bytes: int  #: free bytes in them
    held_bytes: int  #: bytes of the blocks in them, of all sites
    blocks: int  #: number of these blocks


def find_pins(snapshot: Snapshot, state: MemoryState) -> list[Pins]:
    """Find the sites whose blocks hold segments that are mostly free.

    Each segment is counted once, for the site that has the most bytes in it.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    state : MemoryState
        Its segments and blocks at one moment.

    Returns
    -------
    list of Pins
        By site, stream and private pool; those with the most free bytes first.
    """
    block, unit, held = _parts(state)
    if not len(block):
        return []
    keys, index = np.unique(unit, axis=0, return_inverse=True)
    index = index.reshape(-1)
    used = np.zeros(len(keys), np.int64)
    np.add.at(used, index, held)
    segment = state.segments[keys[:, 0]]
    begin = segment["origin"].astype(np.int64) + keys[:, 1] * segment["unit"]
    first, last = segment["address"].astype(np.int64), segment["address"].astype(np.int64) + segment["nbytes"]
    size = np.minimum(begin + segment["unit"], last) - np.maximum(begin, first)
    mostly_free = used < _MOSTLY_FREE * size
    count = np.bincount(index, minlength=len(keys))

    sites = find_sites(snapshot)
    site = sites.of_stack[state.blocks["stack"][block]]
    # The site with the most bytes of each unit: sum by unit and site, then keep the largest sum of each unit.
    pairs, pair = np.unique(np.stack([index, site], 1), axis=0, return_inverse=True)
    sums = np.zeros(len(pairs), np.int64)
    np.add.at(sums, pair.reshape(-1), held)
    owner = np.zeros(len(keys), np.int64)
    order = np.argsort(sums, kind="stable")
    owner[pairs[order, 0]] = pairs[order, 1]  # of equal units the last assignment counts

    groups: dict[tuple[int, int, int], list[int]] = {}
    for row in np.flatnonzero(mostly_free).tolist():
        key = int(owner[row]), int(segment["queue"][row]), int(segment["pool"][row])
        groups.setdefault(key, []).append(row)
    largest = _largest_blocks(state, block, index, site)
    found = [
        Pins(
            sites.labels[number], sites.frames[number], largest[rows[0], number], queue, pool, len(rows),
            int((size[rows] - used[rows]).sum()), int(used[rows].sum()), int(count[rows].sum()),
        )
        for (number, queue, pool), rows in groups.items()
    ]  # fmt: skip
    return sorted(found, key=lambda pins: (-pins.free_bytes, pins.label, pins.queue, pins.pool))


def _parts(state: MemoryState) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return block row, (segment row, unit number) and bytes of the first and the last unit that each block uses.

    The units between them are full.
    """
    blocks = state.blocks
    segment = blocks["segment"]
    unit = state.segments["unit"][segment]
    begin = blocks["address"].astype(np.int64) - state.segments["origin"][segment].astype(np.int64)
    end = begin + blocks["nbytes"]
    first, last = begin // unit, (end - 1) // unit
    rows = np.arange(len(blocks))
    spans = last > first
    block = np.concatenate([rows, rows[spans]])
    number = np.concatenate([first, last[spans]])
    held = np.concatenate([np.minimum(end, (first + 1) * unit) - begin, (end - last * unit)[spans]])
    return block, np.stack([segment[block], number], 1), held


def _largest_blocks(
    state: MemoryState, block: NDArray[np.int64], unit: NDArray[np.int64], site: NDArray[np.int64]
) -> dict[tuple[int, int], int]:
    """Return the stack of the largest block of each unit and site."""
    order = np.argsort(state.blocks["nbytes"][block], kind="stable")
    stacks = state.blocks["stack"][block[order]].tolist()
    return dict(zip(zip(unit[order].tolist(), site[order].tolist(), strict=True), stacks, strict=True))
