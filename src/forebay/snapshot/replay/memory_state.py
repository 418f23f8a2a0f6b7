"""Segments and blocks at any moment of a history, and how their bytes are used.

The state at a moment is the state in which the rest of the history begins, so it is computed backwards from the final
state, which is exact. A ring buffer that dropped the oldest entries does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import Action, Snapshot
from forebay.snapshot.analysis.timeline import NEVER_SEEN, Timeline, reconstruct
from forebay.snapshot.replay.address_space import Reservation, Reservations
from forebay.snapshot.replay.initial_state import reconstruct_initial_state
from forebay.snapshot.replay.recorded_heaps import recorded_settings_of

__all__ = ["BLOCK_USE", "SEGMENT_USE", "MemoryState", "memory_state"]

_SMALL_PAGE = 2 << 20  # bytes that expandable segments of the small pool map at a time

SEGMENT_USE = np.dtype(
    [
        ("address", "u8"),
        ("nbytes", "i8"),
        ("queue", "u8"),
        ("pool", "i8"),  # private pool id; 0: the default pool
        ("small", "?"),  # for blocks of at most 1 MiB, else for larger ones
        ("growing", "?"),  # a run of mapped pages of an expandable segment
        ("origin", "u8"),  # address from which units are counted
        ("unit", "i8"),  # bytes that return to the device together: a page, or the whole segment
        ("live", "i8"),  # bytes in blocks that are not free
        ("blocks", "i8"),  # number of them
        ("largest_free", "i8"),
        ("releasable", "i8"),  # free bytes that can return to the device: whole free units
    ]
)
_OWN = ("address", "nbytes", "queue", "pool", "small", "growing", "origin", "unit")
BLOCK_USE = np.dtype(
    [
        ("address", "u8"),
        ("nbytes", "i8"),
        ("requested", "i8"),
        ("stack", "i8"),  # row of `Snapshot.stacks`, or `NEVER_SEEN`
        ("segment", "i8"),  # row of `MemoryState.segments`
        ("pending", "?"),  # freed, but other streams still use it
    ]
)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryState:
    """Segments and blocks of a device at one moment. Sizes are in bytes.

    `reserved` is the sum of `requested`, `rounding`, `pending`, `releasable` and `fragmented`.
    """

    moment: int  #: number of history entries before it
    segments: NDArray[np.void]  #: rows of dtype `SEGMENT_USE`, by address
    blocks: NDArray[np.void]  #: rows of dtype `BLOCK_USE`, by address, for blocks that are not free
    outside: int = 0  #: bytes of live blocks that are in none of the segments, which a complete file does not have

    @property
    def reserved(self) -> int:
        """Bytes in segments."""
        return int(self.segments["nbytes"].sum())

    @property
    def requested(self) -> int:
        """Bytes that the program requested for the live blocks."""
        return int(self.blocks["requested"][~self.blocks["pending"]].sum())

    @property
    def rounding(self) -> int:
        """Bytes by which the live blocks are larger than their requests."""
        live = self.blocks[~self.blocks["pending"]]
        return int(live["nbytes"].sum()) - int(live["requested"].sum())

    @property
    def pending(self) -> int:
        """Bytes in blocks that were freed while other streams still used them."""
        return int(self.blocks["nbytes"][self.blocks["pending"]].sum())

    @property
    def free(self) -> int:
        """Free bytes in segments: `releasable` and `fragmented`."""
        return self.reserved - int(self.segments["live"].sum())

    @property
    def releasable(self) -> int:
        """Free bytes that can return to the device: in units (segments, pages) without blocks."""
        return int(self.segments["releasable"].sum())

    @property
    def fragmented(self) -> int:
        """Free bytes that cannot return to the device, as blocks share their segment or page."""
        return self.free - self.releasable

    def largest_free(self, queue: int | None = None, pool: int | None = None, small: bool | None = None) -> int:
        """Return the bytes of the largest free block; 0 if there is none.

        Parameters
        ----------
        queue : int, optional
            Only of the segments of this stream.
        pool : int, optional
            Only of the segments of this private pool; 0 is the default pool.
        small : bool, optional
            Only of the segments for blocks of at most 1 MiB (True), or for larger ones (False).
        """
        rows = self.segments
        for name, wanted in (("queue", queue), ("pool", pool), ("small", small)):
            if wanted is not None:
                rows = rows[rows[name] == wanted]
        return int(rows["largest_free"].max(initial=0))


def memory_state(snapshot: Snapshot, moment: int | None = None, *, timeline: Timeline | None = None) -> MemoryState:
    """Return the segments and blocks at one moment of a history.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    moment : int, optional
        A number of history entries; by default all of them, which gives the final state.
    timeline : Timeline, optional
        The result of `reconstruct(snapshot)`, if already known.

    Raises
    ------
    IndexError
        If the history has fewer entries.
    Unsupported
        If the snapshot has too many private pools.

    Examples
    --------
    >>> from forebay import simulate
    >>> from forebay.snapshot.formats import torch_pickle
    >>> gpu = simulate.Device(1 << 30)
    >>> gpu.record_history()
    >>> blocks = [gpu.allocate(8 << 20), gpu.allocate(8 << 20)]
    >>> gpu.free(blocks[0])
    >>> (snapshot,) = torch_pickle.snapshots(gpu.snapshot())
    >>> memory_state(snapshot).fragmented >> 20, memory_state(snapshot, 3).fragmented >> 20
    (12, 4)
    """
    entries = len(snapshot.trace)
    moment = entries if moment is None else moment
    if not 0 <= moment <= entries:
        raise IndexError(f"moment {moment:,} is not in the history, which has {entries:,} entries")
    timeline = timeline or reconstruct(snapshot)
    rest = replace(snapshot, trace=snapshot.trace[moment:])
    recorded = recorded_settings_of(rest)
    initial = reconstruct_initial_state(rest, recorded)
    segments = [
        (address, nbytes, queue, pool, small, False, address, nbytes)
        for address, nbytes, queue, small, pool in initial.segments
    ]
    segments += _pages(initial.spaces, recorded.large_segment)
    segments.sort()
    uses = np.zeros(len(segments), SEGMENT_USE)
    for name, column in zip(_OWN, zip(*segments, strict=True), strict=False):
        uses[name] = column
    blocks = np.zeros(len(initial.blocks), BLOCK_USE)
    for name in ("address", "nbytes", "requested"):
        blocks[name] = [getattr(block, name) for block in initial.blocks]
    blocks["requested"] = np.minimum(blocks["requested"], blocks["nbytes"])  # a file may contradict itself
    blocks["segment"] = np.searchsorted(uses["address"], blocks["address"], "right") - 1
    blocks["stack"], blocks["pending"] = _owners(snapshot, timeline, moment, blocks["address"])
    _count(uses, blocks)
    live = timeline.allocations.live_at(moment)
    lost = ~np.isin(timeline.allocations.address[live], blocks["address"])
    return MemoryState(moment, uses, blocks, int(timeline.allocations.nbytes[live][lost].sum()))


def _pages(spaces: Reservations, large_page: int) -> list[tuple[int, int, int, int, bool, bool, int, int]]:
    """Return the runs of mapped pages, with the owners of their address space."""
    rows = []
    reservations = iter([*spaces.first, Reservation(1 << 64, 1 << 64, (0, False, 0), 0)])
    space = next(reservations)
    for address, nbytes in spaces.pages:  # both by address
        while space.end <= address:
            space = next(reservations)
        queue, small, pool = space.owner
        unit = _SMALL_PAGE if small else large_page
        rows.append((address, nbytes, queue, pool, small, True, space.address, unit))
    return rows


def _owners(
    snapshot: Snapshot, timeline: Timeline, moment: int, addresses: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return for each block its stack, and whether it was freed already and only waits for other streams."""
    held = timeline.allocations
    begun = np.flatnonzero(held.start <= moment)
    order = begun[np.lexsort((held.start[begun], held.address[begun]))]  # the last of an address is the newest
    found = np.searchsorted(held.address[order], addresses, "right") - 1
    known = found >= 0
    row = order[np.maximum(found, 0)] if len(order) else np.zeros(len(addresses), np.int64)
    if len(order):
        known &= held.address[row] == addresses
        stack = np.where(known, held.stack[row], NEVER_SEEN)
        pending = known & (held.end[row] <= moment)
    else:
        stack, pending = np.full(len(addresses), NEVER_SEEN), np.zeros(len(addresses), bool)
    # A free whose completion follows, and whose request does not: it was requested before the moment.
    rest = snapshot.trace[moment:]
    rows = np.flatnonzero(np.isin(rest["action"], (Action.FREE_REQUESTED, Action.FREE_COMPLETED)))
    first_addresses, first = np.unique(rest["address"][rows], return_index=True)
    completed = first_addresses[rest["action"][rows[first]] == Action.FREE_COMPLETED]
    return stack, pending | np.isin(addresses, completed)


def _count(segments: NDArray[np.void], blocks: NDArray[np.void]) -> None:
    """Fill in the use of each segment."""
    np.add.at(segments["live"], blocks["segment"], blocks["nbytes"])
    np.add.at(segments["blocks"], blocks["segment"], 1)
    row, begin, stop = _gaps(segments, blocks)
    np.maximum.at(segments["largest_free"], row, stop - begin)
    first, unit = begin - segments["origin"][row].astype(np.int64), segments["unit"][row]
    whole = (first + stop - begin) // unit - -(-first // unit)
    np.add.at(segments["releasable"], row, np.maximum(whole, 0) * unit)


def _gaps(
    segments: NDArray[np.void], blocks: NDArray[np.void]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return segment row, start and end of each range between blocks."""
    begins = np.concatenate(
        [segments["address"].astype(np.int64), blocks["address"].astype(np.int64) + blocks["nbytes"]]
    )
    ends = np.concatenate(
        [blocks["address"].astype(np.int64), segments["address"].astype(np.int64) + segments["nbytes"]]
    )
    # The k-th range of a segment ends where its k-th block begins, the last one where the segment ends.
    rows = np.concatenate([np.arange(len(segments)), blocks["segment"]])
    order = np.lexsort((begins, rows))
    end_rows = np.concatenate([blocks["segment"], np.arange(len(segments))])
    row, begin, end = rows[order], begins[order], ends[np.lexsort((ends, end_rows))]
    wide = end > begin
    return row[wide], begin[wide], end[wide]
