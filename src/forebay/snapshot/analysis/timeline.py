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
from forebay.records.model import Action, Snapshot
from forebay.snapshot.analysis import _lifetimes

__all__ = ["NEVER_SEEN", "Allocations", "Timeline", "reconstruct"]

_LIFETIME = np.dtype(
    [
        ("address", "u8"), ("nbytes", "u8"), ("queue", "u8"),
        ("start", "u4"), ("end", "u4"), ("stack", "u4"), ("pool", "u4"),
    ]
)  # fmt: skip
_UNSEEN = 0xFFFFFFFF  # kNeverSeen of native/snapshot/lifetimes.hpp
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
    """Match each allocation entry with its free, as native/snapshot/lifetimes.hpp describes."""
    tables = (snapshot.trace, snapshot.blocks, snapshot.segments)
    content = [np.ascontiguousarray(table).view(np.uint8) for table in tables]
    rows = np.frombuffer(_lifetimes.match(*content), _LIFETIME)
    stack = rows["stack"].astype(np.int64)
    stack[rows["stack"] == _UNSEEN] = NEVER_SEEN
    numbers = {name: rows[name].astype(np.int64) for name in ("start", "end", "nbytes", "pool")}
    return Allocations(**numbers, stack=stack, address=rows["address"].copy(), queue=rows["queue"].copy())
