"""Histories of a program that is changed: other sizes, fewer blocks, earlier frees, ready for a replay.

# Note [Changed programs]
A replay of a changed program repeats the recorded requests in their order, and only those that the change names differ.
What the program would do otherwise, such as allocate less elsewhere, is not in the history. Blocks that are older than
the history remain where they were recorded: they become smaller or are left out there, and never larger, as the
segments around them were reserved by the unchanged program. So the memory that was reserved before counts in full, and
what fits in the replay is not due to a better start. Rejected: to allocate the older blocks anew, see
Note [Start of a replay].
Test: tests/snapshot/replay/test_changed_history.py::test_older_blocks_shrink_in_their_place
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from forebay._core import MAX_REQUEST_BYTES
from forebay.records.model import Action, Snapshot
from forebay.records.sites import Sites, find_sites
from forebay.snapshot.analysis.timeline import Allocations, Timeline
from forebay.snapshot.replay.changes import BACKWARD, ERROR, Change, Kind, backward_stacks, is_number, matching_stacks
from forebay.snapshot.replay.engine import History
from forebay.snapshot.replay.initial_state import LiveBlock

__all__ = ["ChangedHistory", "Program"]

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class ChangedHistory:
    """A history with changes, and what they concern at the explained moment. Sizes are in bytes."""

    history: History  #: the history to replay
    blocks: int  #: live blocks that the changes name
    nbytes: int  #: their requested bytes
    blocks_left: int  #: those of them that are live with the changes
    bytes_left: int  #: their requested bytes with the changes
    request: int | None  #: size of the failed request with the changes; None if they do not concern it
    kept: int  #: blocks that are older than the history and would have to be larger, which they are not


class Program:
    """The allocations of one recording, as changes name them.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    history : History
        Its history.
    timeline : Timeline
        The result of `reconstruct(snapshot)`.
    moment : int
        The explained moment.
    failed : int, optional
        The entry of the failed request that is explained; the replays end there. By default there is none.
    """

    def __init__(
        self, snapshot: Snapshot, history: History, timeline: Timeline, moment: int, failed: int | None = None
    ) -> None:
        self.snapshot: Snapshot = snapshot
        self.moment: int = moment
        self.failed: int | None = failed
        self.held: Allocations = timeline.allocations  #: the allocations
        self.live: NDArray[np.intp] = self.held.live_at(moment)  #: those that are live at the moment
        nbytes = self.held.nbytes[self.live]
        self.sites: Sites = find_sites(snapshot)  #: as an explanation shows them
        self.site: NDArray[np.int64] = self.sites.of_stack[self.held.stack]  #: site of each allocation
        live_bytes = np.bincount(self.site[self.live], nbytes, len(self.sites.frames))
        #: Sites by their live bytes at the moment, most first.
        self.ranked: list[int] = np.argsort(-live_bytes, kind="stable").tolist()
        columns = history.columns
        if failed is not None:
            stop = int(np.searchsorted(columns[0], failed, "right"))
            columns = [column[:stop] for column in columns]
        self._columns = columns
        self.history: History = history.replaced(columns)  #: the history, to the failed request
        self._backward: NDArray[np.bool_] | None = None

    @property
    def is_backward(self) -> NDArray[np.bool_]:
        """A flag for each stack: true if it is of the backward pass."""
        if self._backward is None:
            self._backward = backward_stacks(self.snapshot, len(self.sites.of_stack))
        return self._backward

    def changed(self, changes: Sequence[Change]) -> ChangedHistory:
        """Return the history with changes.

        Parameters
        ----------
        changes : sequence of Change
            The changes, which apply together.

        Raises
        ------
        ValueError
            If one of them names nothing in the snapshot.
        """
        held, count = self.held, len(self.held.start)
        factor, dropped = np.ones(count), np.zeros(count, np.bool_)
        freed = np.full(count, _NEVER)  # the entry before which each allocation is freed
        named, request_factor = np.zeros(count, np.bool_), 1.0
        request_stack = None if self.failed is None else int(self.snapshot.trace["stack"][self.failed])
        for change in changes:
            stacks = self._stacks(change.site)
            chosen = stacks[held.stack]
            named |= chosen
            if change.kind == Kind.SIZE:
                factor[chosen] *= change.number
                request_factor *= change.number if request_stack is not None and stacks[request_stack] else 1.0
            elif change.kind == Kind.BLOCKS:
                dropped |= self._beyond(chosen, int(change.number))
            else:
                rows = np.flatnonzero(chosen)
                freed[rows] = np.minimum(freed[rows], self._ends(rows, change.when))
        dropped |= factor == 0
        freed[freed >= held.end - 1] = _NEVER  # the program frees it earlier
        return self._applied(named, factor, dropped, freed, request_factor)

    def _stacks(self, text: str) -> NDArray[np.bool_]:
        order = [self.sites.labels[site] for site in self.ranked]
        return matching_stacks(self.snapshot, self.sites, text, order)

    def _beyond(self, chosen: NDArray[np.bool_], most: int) -> NDArray[np.bool_]:
        """Return the allocations that are left out if at most so many of the chosen ones are live at once."""
        beyond = np.zeros(len(chosen), np.bool_)
        rows = np.flatnonzero(chosen)
        rows = rows[np.argsort(self.held.start[rows], kind="stable")]
        ends: list[int] = []
        starts, stops = self.held.start[rows].tolist(), self.held.end[rows].tolist()
        for row, start, stop in zip(rows.tolist(), starts, stops, strict=True):
            while ends and ends[0] <= start:
                heappop(ends)
            if len(ends) < most:
                heappush(ends, stop)
            else:
                beyond[row] = True
        return beyond

    def _ends(self, rows: NDArray[np.intp], when: str) -> NDArray[np.int64]:
        """Return the entry before which each of the allocations is freed."""
        targets = self._targets(when)
        begun = self.held.start[rows]  # the entry after the allocation
        at = np.searchsorted(targets, begun)
        return np.append(targets, _NEVER)[at]

    def _targets(self, when: str) -> NDArray[np.int64]:
        """Return the entries that are meant by what follows "freed-before=", ascending."""
        trace = self.snapshot.trace
        if when == ERROR:
            if self.failed is None:
                raise ValueError(
                    f"memory did not run out on {self.snapshot.device}, so no block can be freed before the error"
                )
            return np.array([self.failed], np.int64)
        if is_number(when):
            entry = int(when.replace(",", "")[:18]) - 1
            if not 0 <= entry < len(trace):
                raise ValueError(
                    f"freed-before={when}: the history of {self.snapshot.device} has {len(trace):,} entries"
                )
            return np.array([entry], np.int64)
        stacks = self.is_backward if when == BACKWARD else self._stacks(when)
        requests = np.isin(trace["action"], (Action.ALLOC, Action.OOM))
        found = np.flatnonzero(requests & stacks[trace["stack"]])
        if not len(found):
            what = (
                "the stacks show no backward pass" if when == BACKWARD else f"{when!r} allocates nothing in the history"
            )
            raise ValueError(f"freed-before={when}: {what} of {self.snapshot.device}: name a site or an entry's number")
        return found.astype(np.int64)

    def _applied(
        self,
        named: NDArray[np.bool_],
        factor: NDArray[np.float64],
        dropped: NDArray[np.bool_],
        freed: NDArray[np.int64],
        request_factor: float,
    ) -> ChangedHistory:
        held = self.held
        sizes = np.where(factor == 1, held.nbytes, _scaled(held.nbytes, factor))
        initial, kept = self._initial(factor, dropped, sizes)
        request = None
        columns = [column.copy() for column in self._columns]
        rows, nbytes = columns[0], columns[3]
        recorded = np.flatnonzero((held.start > 0) & ((factor != 1) | dropped))
        at = np.searchsorted(rows, held.start[recorded] - 1)
        known = at < len(rows)
        recorded, at = recorded[known], at[known]
        exact = rows[at] == held.start[recorded] - 1
        recorded, at = recorded[exact], at[exact]
        nbytes[at] = sizes[recorded]
        if self.failed is not None and request_factor != 1 and len(rows) and rows[-1] == self.failed:
            request = int(_scaled(nbytes[-1:].astype(np.int64), np.array([request_factor]))[0])
            nbytes[-1] = request
        frees = np.flatnonzero((freed < _NEVER) & ~dropped)
        before = np.searchsorted(rows, freed[frees])
        left = np.ones(len(rows), np.bool_)
        left[at[dropped[recorded]]] = False
        before = np.append(0, np.cumsum(left))[before]
        columns = [column[left] for column in columns]
        added = (
            freed[frees], np.full(len(frees), int(Action.FREE_COMPLETED)), held.address[frees], sizes[frees],
            held.queue[frees], held.pool[frees],
        )  # fmt: skip
        columns = [np.insert(column, before, values.astype(column.dtype)) for column, values in
                   zip(columns, added, strict=True)]  # fmt: skip
        concerned = self.live[named[self.live]]
        stay = concerned[~dropped[concerned] & (freed[concerned] >= self.moment)]
        return ChangedHistory(
            self.history.replaced(columns, initial), len(concerned), int(held.nbytes[concerned].sum()), len(stay),
            int(sizes[stay].sum()), request, kept,
        )  # fmt: skip

    def _initial(
        self, factor: NDArray[np.float64], dropped: NDArray[np.bool_], sizes: NDArray[np.int64]
    ) -> tuple[list[LiveBlock], int]:
        """Return the blocks that are older than the history, with the changes; how many would have to be larger."""
        held, blocks = self.held, self.history.initial_state.blocks
        older = np.flatnonzero((held.start == 0) & ((factor != 1) | dropped))
        if not len(older):
            return blocks, 0
        changed = dict(zip(held.address[older].tolist(), older.tolist(), strict=True))
        rounded = self.history.recorded.rounded(sizes[older].astype(np.uint64))
        size_of = dict(zip(older.tolist(), rounded.tolist(), strict=True))
        found, larger = [], 0
        for block in blocks:
            row = changed.get(block.address)
            if row is None:
                found.append(block)
            elif not dropped[row]:
                larger += size_of[row] > block.nbytes
                nbytes = min(size_of[row], block.nbytes)
                found.append(block._replace(nbytes=nbytes, requested=min(int(sizes[row]), nbytes)))
        return found, larger


def _scaled(nbytes: NDArray[np.int64], factor: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return sizes times a factor: at least one byte, at most what can be requested."""
    return np.clip(np.ceil(nbytes * factor), 1, MAX_REQUEST_BYTES - 1).astype(np.int64)
