"""What was allocated when: the history turned into curves and lifetimes, with no loop over its entries.

A *moment* is a number of entries: moment 0 is before the first, moment m after the first m, moment n the end. The final
state is known exactly (the blocks and segments), the ring may have lost the beginning; so where the two disagree the
final state wins and the past is worked out backwards from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.snapshot.model import Action, Snapshot, State

__all__ = ["NEVER_SEEN", "Allocations", "Timeline", "reconstruct"]

NEVER_SEEN = -1  # the stack of an allocation that was made before recording and is known by its end alone


@dataclass(frozen=True, slots=True, eq=False)
class Allocations:
    """Every allocation the snapshot knows of, a row each; live at moment m if `start <= m < end`."""

    start: NDArray[np.int64]  # 0: taken before the history began
    end: NDArray[np.int64]  # n + 1: still live at the end
    nbytes: NDArray[np.int64]  # as requested
    stack: NDArray[np.int64]  # row of Snapshot.stacks, or NEVER_SEEN

    def live_at(self, moment: int) -> NDArray[np.intp]:
        """Rows of the allocations that are live at a moment."""
        return np.flatnonzero((self.start <= moment) & (moment < self.end))


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Allocated and reserved bytes at every moment; all three arrays have one element more than the history."""

    time_ns: NDArray[np.int64]
    allocated: NDArray[np.int64]  # requested bytes of blocks between TAKE and GIVE
    reserved: NDArray[np.int64]
    allocations: Allocations
    peak: int  # the first moment at which the most was allocated

    @property
    def moments(self) -> int:
        """Moments 0 to n: how many there are."""
        return len(self.allocated)

    def lifetimes_ns(self) -> NDArray[np.int64]:
        """How long each allocation lived, -1 where its beginning or its end was not seen."""
        held = self.allocations
        seen = (held.start > 0) & (held.end < self.moments)
        ends = np.minimum(held.end, self.moments - 1)
        return np.where(seen, self.time_ns[ends] - self.time_ns[held.start], -1)


def reconstruct(snapshot: Snapshot) -> Timeline:
    """Work the history out; a million entries take under a second."""
    trace, entries = snapshot.trace, len(snapshot.trace)
    held = _pair(snapshot)
    changes = np.zeros(entries + 2, np.int64)
    np.add.at(changes, held.start, held.nbytes)
    np.subtract.at(changes, held.end, held.nbytes)
    allocated = np.cumsum(changes[: entries + 1])

    sizes = trace["nbytes"].astype(np.int64)
    came, went = ((Action.RESERVE, Action.MAP), (Action.RELEASE, Action.UNMAP))
    grown = np.where(np.isin(trace["action"], came), sizes, 0) - np.where(np.isin(trace["action"], went), sizes, 0)
    final = int(snapshot.segments["nbytes"].sum())
    reserved = np.full(entries + 1, final, np.int64)
    reserved[:-1] -= np.cumsum(grown[::-1])[::-1]  # final minus everything that came after

    times = trace["time_ns"].astype(np.int64)
    first = times[:1] if entries else np.array([snapshot.taken_at_ns], np.int64)
    return Timeline(
        time_ns=np.concatenate([first, times]),
        allocated=allocated,
        reserved=np.maximum(reserved, 0),  # a history with gaps may claim to release what it never reserved
        allocations=held,
        peak=int(np.argmax(allocated)),
    )


def _pair(snapshot: Snapshot) -> Allocations:
    """Match every TAKE with the GIVE that ends it: of one address, the next in order.

    What has no partner: a GIVE was taken before the history began. A TAKE is the block that is live at its address in
    the end; else its GIVE was not recorded, and it counts until its address is taken again, or nearly to the end.
    """
    trace, entries = snapshot.trace, len(snapshot.trace)
    rows = np.flatnonzero((trace["action"] == Action.TAKE) | (trace["action"] == Action.GIVE))
    rows = rows[np.argsort(trace["address"][rows], kind="stable")]
    address, taken = trace["address"][rows], trace["action"][rows] == Action.TAKE
    same = np.zeros(len(rows) + 1, bool)  # same[i]: rows i-1 and i are about one address
    same[1:-1] = address[1:] == address[:-1]

    takes = np.flatnonzero(taken)
    start = rows[takes] + 1
    following = np.append(rows, 0)[takes + 1] + 1
    end = np.where(same[takes + 1], following, entries)
    orphans = np.flatnonzero(~taken & ~(same[:-1] & np.concatenate([[False], taken[:-1]])))

    live = snapshot.blocks[snapshot.blocks["state"] == State.LIVE]
    last = takes[~same[takes + 1]]  # the last word on its address is a TAKE, so rows[last] is in address order
    where = np.searchsorted(address[last], live["address"])
    match = where < len(last)
    match[match] = address[last][where[match]] == live["address"][match]
    match[match] &= trace["nbytes"][rows[last[where[match]]]] == live["requested"][match]
    end[np.searchsorted(takes, last[where[match]])] = entries + 1
    older = live[~match]

    gives = rows[orphans]
    sizes = trace["nbytes"].astype(np.int64)
    return Allocations(
        start=np.concatenate([start, np.zeros(len(gives) + len(older), np.int64)]),
        end=np.concatenate([end, gives + 1, np.full(len(older), entries + 1)]),
        nbytes=np.concatenate([sizes[rows[takes]], sizes[gives], older["requested"].astype(np.int64)]),
        stack=np.concatenate(
            [trace["stack"][rows[takes]].astype(np.int64), np.full(len(gives), NEVER_SEEN), _stacks(older["stack"])]
        ),
    )


def _stacks(column: NDArray[np.uint32]) -> NDArray[np.int64]:
    """A block that was live before recording began and has no stack is as unknown as a lone GIVE."""
    return np.where(column == 0, NEVER_SEEN, column.astype(np.int64))
