"""Memory over time: allocated and reserved bytes and allocation lifetimes, computed without a loop over the history.

A *moment* is a number of entries: moment 0 is before the first entry, moment m after the first m, moment n the end.
The final state (blocks and segments) is exact, but the ring buffer may have dropped the oldest entries. Where the two
disagree the final state is authoritative, and earlier moments are computed backwards from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.records import model
from forebay.records.model import Action, Snapshot, State

__all__ = ["NEVER_SEEN", "Allocations", "Timeline", "reconstruct"]

NEVER_SEEN = -1  # the stack of an allocation made before recording began, of which only the free is known


@dataclass(frozen=True, slots=True, eq=False)
class Allocations:
    """All allocations that a snapshot knows, one row each. A row is live at moment m if `start <= m < end`."""

    start: NDArray[np.int64]  #: moment of the allocation; 0 if it was made before the history began
    end: NDArray[np.int64]  #: moment of the free; n + 1 if the allocation is live at the end
    nbytes: NDArray[np.int64]  #: requested bytes
    stack: NDArray[np.int64]  #: rows of `Snapshot.stacks`, or `NEVER_SEEN`
    address: NDArray[np.uint64]  #: addresses of the blocks
    queue: NDArray[np.uint64]  #: streams that the blocks were allocated on
    pool: NDArray[np.int64]  #: ids of the private pools of the blocks; 0 is the default pool

    def live_at(self, moment: int) -> NDArray[np.intp]:
        """Return the ascending row indices of the allocations that are live at a moment.

        Parameters
        ----------
        moment : int
            A number of history entries.
        """
        return np.flatnonzero((self.start <= moment) & (moment < self.end))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Timeline:
    """Allocated and reserved bytes at every moment."""

    #: Unix time of each moment in nanoseconds. Like the next two arrays, one element longer than the history.
    time_ns: NDArray[np.int64]
    #: Requested bytes of live blocks at each moment. A block stops counting when its free is requested.
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]  #: bytes in segments at each moment
    allocations: Allocations  #: the allocations
    peak: int  #: the first moment with the maximum of `allocated`

    @property
    def moments(self) -> int:
        """The number of moments: the length of the history plus one."""
        return len(self.allocated)

    def lifetimes_ns(self) -> NDArray[np.int64]:
        """Return the lifetime of each allocation.

        Returns
        -------
        numpy.ndarray
            Nanoseconds, in the order of `allocations`; -1 if the allocation or its free was not recorded.
        """
        held = self.allocations
        seen = (held.start > 0) & (held.end < self.moments)
        ends = np.minimum(held.end, self.moments - 1)
        return np.where(seen, self.time_ns[ends] - self.time_ns[held.start], -1)

    def __repr__(self) -> str:
        peak, count = int(self.allocated[self.peak]), len(self.allocations.start)
        return f"Timeline(moments={self.moments}, allocations={count}, peak={peak} bytes at {self.peak})"

    def _repr_html_(self) -> str:
        return model.hooks.timeline_html(self)


def reconstruct(snapshot: Snapshot) -> Timeline:
    """Reconstruct memory over time from a snapshot; a single moment if the snapshot has no history.

    A million entries take less than a second.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    """
    trace, entries = snapshot.trace, len(snapshot.trace)
    held = _match_allocations(snapshot)
    changes = np.zeros(entries + 2, np.int64)
    np.add.at(changes, held.start, held.nbytes)
    np.subtract.at(changes, held.end, held.nbytes)
    allocated = np.cumsum(changes[: entries + 1])

    sizes = trace["nbytes"].astype(np.int64)
    grows, shrinks = ((Action.RESERVE, Action.MAP), (Action.RELEASE, Action.UNMAP))
    growth = np.where(np.isin(trace["action"], grows), sizes, 0) - np.where(np.isin(trace["action"], shrinks), sizes, 0)
    final = int(snapshot.segments["nbytes"].sum())
    reserved = np.full(entries + 1, final, np.int64)
    reserved[:-1] -= np.cumsum(growth[::-1])[::-1]  # final minus all later changes

    times = trace["time_ns"].astype(np.int64)
    first = times[:1] if entries else np.array([snapshot.taken_at_ns], np.int64)
    return Timeline(
        time_ns=np.concatenate([first, times]),
        allocated=allocated,
        reserved=np.maximum(reserved, 0),  # a history with gaps may release segments that it never reserved
        allocations=held,
        peak=int(np.argmax(allocated)),
    )


def _match_allocations(snapshot: Snapshot) -> Allocations:
    """Match each allocation entry with its free: the next entry for the same address.

    A free without an allocation belongs to a block allocated before the history began. An allocation without a free is
    the final live block at its address. If there is no such block, its free was not recorded: it counts until the
    address is allocated again, or until the last moment but one.
    """
    trace, entries = snapshot.trace, len(snapshot.trace)
    rows = np.flatnonzero((trace["action"] == Action.ALLOC) | (trace["action"] == Action.FREE_REQUESTED))
    rows = rows[np.argsort(trace["address"][rows], kind="stable")]
    address, is_alloc = trace["address"][rows], trace["action"][rows] == Action.ALLOC
    same = np.zeros(len(rows) + 1, bool)  # same[i]: rows i-1 and i have the same address
    same[1:-1] = address[1:] == address[:-1]

    allocs = np.flatnonzero(is_alloc)
    start = rows[allocs] + 1
    following = np.append(rows, 0)[allocs + 1] + 1
    end = np.where(same[allocs + 1], following, entries)
    unmatched_frees = np.flatnonzero(~is_alloc & ~(same[:-1] & np.concatenate([[False], is_alloc[:-1]])))

    live = snapshot.blocks[snapshot.blocks["state"] == State.LIVE]
    last = allocs[~same[allocs + 1]]  # the last entry of its address is an allocation; sorted by address
    where = np.searchsorted(address[last], live["address"])
    match = where < len(last)
    match[match] = address[last][where[match]] == live["address"][match]
    match[match] &= trace["nbytes"][rows[last[where[match]]]] == live["requested"][match]
    end[np.searchsorted(allocs, last[where[match]])] = entries + 1
    older = live[~match]

    frees = rows[unmatched_frees]
    sizes = trace["nbytes"].astype(np.int64)
    seen = np.concatenate([rows[allocs], frees])  # the entry that describes each allocation that the history mentions
    segments = snapshot.segments[older["segment"]]
    return Allocations(
        start=np.concatenate([start, np.zeros(len(frees) + len(older), np.int64)]),
        end=np.concatenate([end, frees + 1, np.full(len(older), entries + 1)]),
        nbytes=np.concatenate([sizes[seen], older["requested"].astype(np.int64)]),
        stack=np.concatenate(
            [
                trace["stack"][rows[allocs]].astype(np.int64),
                np.full(len(frees), NEVER_SEEN),
                _known_stacks(older["stack"]),
            ]
        ),
        address=np.concatenate([trace["address"][seen], older["address"]]),
        queue=np.concatenate([trace["queue"][seen], segments["queue"]]),
        pool=np.concatenate([trace["pool"][seen], segments["pool"]]).astype(np.int64),
    )


def _known_stacks(column: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Map row 0 (no stack) of blocks that were live before recording began to NEVER_SEEN."""
    return np.where(column == 0, NEVER_SEEN, column.astype(np.int64))
