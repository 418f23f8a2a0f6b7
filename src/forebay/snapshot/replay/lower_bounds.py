"""Bounds of the memory that a history needs: below which no settings can go, and what a packing in advance reaches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay._core import MAX_REQUEST_BYTES, MAX_SMALL_BYTES
from forebay.records.model import Action, Snapshot
from forebay.snapshot.analysis.timeline import Allocations, Timeline, reconstruct
from forebay.snapshot.replay.engine import History
from forebay.snapshot.replay.placement import reserved_bytes

__all__ = ["MOST_PACKED", "Bounds", "Packing", "find_bounds", "pack"]

MOST_PACKED = 10_000  #: blocks that are packed; of a longer history, those around its peak
_BLOCK = 512  # bytes, of which all sizes of blocks are multiples, under all settings
_SEGMENT, _FINE_SEGMENT = 2 << 20, 64 << 10  # the same for segments and pages


@dataclass(frozen=True, slots=True)
class Packing:
    """An arrangement of blocks, whose lifetimes are all known in advance, in one piece of memory."""

    nbytes: int  #: its size in bytes
    packed: int  #: blocks that it holds
    blocks: int  #: blocks of the history

    @property
    def whole(self) -> bool:
        """True if it holds all blocks of the history, False for those around its peak."""
        return self.packed == self.blocks


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the memory of one history. Sizes are in bytes."""

    live: int  #: most bytes that were requested for live blocks at once
    #: Bytes that every setting must reserve: the most that was live at once in blocks of whole 512 bytes, in whole
    #: 2 MiB for each stream, private pool and size class, as in segments. Heaps have neither: there it is `live`.
    least: int
    #: The same with the largest request that failed in the recording, which would be live, too.
    needed: int
    reserved_before: int  #: reserved when the history began, with which replays begin
    packing: Packing  #: an arrangement of the blocks; its size can be reached, but not by this allocator


def find_bounds(snapshot: Snapshot, history: History, *, timeline: Timeline | None = None) -> Bounds:
    """Return the bounds of the memory that a history needs.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    history : History
        Its history.
    timeline : Timeline, optional
        The result of `reconstruct(snapshot)`, if already known.
    """
    timeline = timeline or reconstruct(snapshot)
    held, initial = timeline.allocations, history.initial_state
    older = np.array([block.address for block in initial.blocks], np.uint64)
    counted = (held.nbytes > 0) & (held.nbytes < MAX_REQUEST_BYTES)
    counted &= (held.start > 0) | np.isin(held.address, older)  # others are in no segment, and not replayed
    rows = np.flatnonzero(counted)
    heaps = history.recorded.heaps
    unit = 1 if heaps else _FINE_SEGMENT if history.recorded.fine_segments else _SEGMENT
    levels = _levels(held, rows, unit, timeline.moments, classes=not heaps)
    failed = np.flatnonzero(snapshot.trace["action"] == Action.OOM)
    wanted = np.minimum(snapshot.trace["nbytes"][failed], MAX_REQUEST_BYTES).astype(np.int64)
    live = int(timeline.allocated.max())
    least = live if heaps else int(levels.max())
    # In bytes, as a request may use what is free in the segments of its class.
    with_request = _levels(held, rows, 1, timeline.moments, classes=False)[failed] + wanted
    return Bounds(
        live=live,
        least=least,
        needed=max(least, int(with_request.max(initial=0))),
        reserved_before=reserved_bytes(initial),
        packing=_packing(held, rows, timeline),
    )


def _levels(held: Allocations, rows: NDArray[np.intp], unit: int, moments: int, *, classes: bool) -> NDArray[np.int64]:
    """Return the bytes of live blocks at each moment, in whole units for each stream, private pool and size class."""
    size = _rounded(held.nbytes[rows])
    kind = np.zeros(len(rows), np.int64)
    if classes:
        keys = np.stack([held.queue[rows].astype(np.int64), held.pool[rows], size <= MAX_SMALL_BYTES], 1)
        kind = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    at = np.concatenate([held.start[rows], held.end[rows]])
    change, kind = np.concatenate([size, -size]), np.concatenate([kind, kind])
    order = np.lexsort((at, kind))
    at, change, kind = at[order], change[order], kind[order]
    level = np.cumsum(change)  # each class ends at 0, so one sum serves all
    units = -(-level // unit) * unit
    first = np.append(True, kind[1:] != kind[:-1])[: len(units)]
    before = np.where(first, 0, np.append(0, units[:-1])[: len(units)])
    found = np.zeros(moments + 1, np.int64)
    np.add.at(found, np.minimum(at, moments), units - before)
    return np.cumsum(found)[:moments]


def _rounded(nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
    return -(-nbytes // _BLOCK) * _BLOCK


def _packing(held: Allocations, rows: NDArray[np.intp], timeline: Timeline) -> Packing:
    chosen = rows
    if len(rows) > MOST_PACKED:  # those that are live at the peak, and the nearest others
        distance = np.maximum(held.start[rows] - timeline.peak, timeline.peak + 1 - held.end[rows])
        near = np.argpartition(np.maximum(distance, 0), MOST_PACKED)[:MOST_PACKED]
        chosen = rows[near]
    size = _rounded(held.nbytes[chosen])
    start, end = held.start[chosen], held.end[chosen]
    return Packing(pack(start, end, size), len(chosen), len(rows))


def pack(start: NDArray[np.int64], end: NDArray[np.int64], size: NDArray[np.int64]) -> int:
    """Return the bytes of one piece of memory in which blocks are placed by best fit, all lifetimes known in advance.

    The largest block is placed first, the longest of equal ones; each in the smallest gap that no block takes during
    its lifetime, or else after all of these. A better arrangement may exist: to find the best one is NP-hard.

    Parameters
    ----------
    start, end : numpy.ndarray
        The moments from and until which each block is live; `end` itself does not count.
    size : numpy.ndarray
        Their sizes.
    """
    order = np.lexsort((start, start - end, -size))
    begin, stop = np.zeros(len(size), np.int64), np.zeros(len(size), np.int64)  # of lifetimes, in the order of places
    low, high = begin.copy(), begin.copy()
    for count, row in enumerate(order.tolist()):
        first, last, nbytes = int(start[row]), int(end[row]), int(size[row])
        meets = (begin[:count] < last) & (stop[:count] > first)
        taken_low, taken_high = low[:count][meets], high[:count][meets]
        ends = np.maximum.accumulate(np.append(0, taken_high))
        gaps = taken_low - ends[:-1]
        fitting = np.flatnonzero(gaps >= nbytes)
        place = int(ends[fitting[np.argmin(gaps[fitting])]]) if len(fitting) else int(ends[-1])
        at = int(np.searchsorted(low[:count], place, "right"))
        for column, value in ((begin, first), (stop, last), (low, place), (high, place + nbytes)):
            column[at + 1 : count + 1] = column[at:count].copy()
            column[at] = value
    return int(high.max(initial=0))
