"""The allocator's state at the beginning of a history: the final segments and blocks, with the history undone.

The first entry for an address shows the initial state there: a block that is freed first was live, a segment that is
released first was reserved. Addresses without entries are unchanged. Gaps between blocks were free. A ring buffer that
dropped entries only makes the history begin later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay._core import MAX_SMALL_BYTES
from forebay.records.model import Action, Snapshot, State
from forebay.snapshot.replay.address_space import Reservations, reconstruct_reservations
from forebay.snapshot.replay.recorded_settings import RecordedSettings

__all__ = ["InitialState", "LiveBlock", "reconstruct_initial_state"]


class LiveBlock(NamedTuple):
    """A block that was live at the beginning."""

    address: int
    nbytes: int
    requested: int
    queue: int
    pool: int
    extensible_until: int = 0  # the entry that frees it, if it may be larger than `nbytes` by up to MAX_SMALL_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class InitialState:
    """Segments, reservations and live blocks at the beginning, each by address."""

    segments: list[tuple[int, int, int, bool, int]]  # address, size, queue, small, private pool id
    spaces: Reservations
    blocks: list[LiveBlock]


def reconstruct_initial_state(snapshot: Snapshot, recorded: RecordedSettings) -> InitialState:
    """Reconstruct the initial state. Omits blocks outside segments and segments that overlap."""
    segments = _segments(snapshot, recorded)
    spaces = reconstruct_reservations(snapshot, recorded)
    areas = sorted([(address, nbytes) for address, nbytes, *_ in segments] + spaces.pages)
    large = {address for address, _, _, small, _ in segments if not small}
    kept, end = [], 0
    for address, nbytes in areas:
        if address >= end:
            kept.append((address, nbytes))
            end = address + nbytes
    kept_addresses = {address for address, _ in kept}
    segments = [row for row in segments if row[0] in kept_addresses]
    spaces.pages = [row for row in spaces.pages if row[0] in kept_addresses]
    return InitialState(segments, spaces, _blocks(snapshot, recorded, kept, large))


def _first_of_each(trace: NDArray[np.void], *actions: Action) -> NDArray[np.intp]:
    """Return the first entry for each address among those with one of these actions, by address."""
    rows = np.flatnonzero(np.isin(trace["action"], actions))
    _, first = np.unique(trace["address"][rows], return_index=True)
    return rows[first]


def _segments(snapshot: Snapshot, recorded: RecordedSettings) -> list[tuple[int, int, int, bool, int]]:
    trace = snapshot.trace
    touched = _first_of_each(trace, Action.RESERVE, Action.RELEASE)
    final = snapshot.segments[snapshot.segments["growing"] == 0]
    unchanged = final[~np.isin(final["address"], trace["address"][touched])]
    touched = touched[trace["action"][touched] == Action.RELEASE]
    small_flags, released = recorded.are_small(touched), trace[touched]
    rows = [
        *zip(*(unchanged[name].tolist() for name in ("address", "nbytes", "queue", "small", "pool")), strict=True),
        *zip(
            *(released[name].tolist() for name in ("address", "nbytes", "queue")),
            small_flags,
            released["pool"].tolist(),
            strict=True,
        ),
    ]
    return sorted((address, nbytes, queue, bool(small), pool) for address, nbytes, queue, small, pool in rows)


def _blocks(
    snapshot: Snapshot, recorded: RecordedSettings, areas: list[tuple[int, int]], large: set[int]
) -> list[LiveBlock]:
    entries = _first_of_each(snapshot.trace, Action.ALLOC, Action.FREE_COMPLETED)
    touched = snapshot.trace[entries]
    # The size of a block that the history frees is not recorded.
    free_entry = dict(zip(touched["address"].tolist(), entries.tolist(), strict=True))
    fronts = _FreeBlockStarts(snapshot.trace)
    final = snapshot.blocks[snapshot.blocks["state"] != State.FREE]
    unchanged = final[~np.isin(final["address"], touched["address"])]
    freed_blocks = touched[touched["action"] == Action.FREE_COMPLETED]
    segments = snapshot.segments[unchanged["segment"]]
    columns = (
        (unchanged["address"], freed_blocks["address"]),
        (unchanged["nbytes"], recorded.rounded(freed_blocks["nbytes"])),
        (unchanged["requested"], freed_blocks["nbytes"]),
        (segments["queue"], freed_blocks["queue"]),
        (segments["pool"], freed_blocks["pool"]),
    )
    rows = sorted(LiveBlock(*row) for row in zip(*(np.concatenate(pair).tolist() for pair in columns), strict=True))
    kept: list[LiveBlock] = []
    remaining, area = iter([*areas, (1 << 64, 0)]), (0, 0)
    for row, after in zip(rows, [*rows[1:], None], strict=False):
        while sum(area) <= row.address:
            area = next(remaining)
        stop = min(sum(area), after.address) if after else sum(area)
        if row.address < area[0] or row.address + row.nbytes > stop:
            continue
        if area[0] in large and (freed := free_entry.get(row.address)) is not None:
            end = row.address + row.nbytes
            # The large pool has no blocks of at most 1 MiB: such a remainder belongs to this block.
            unsplit = stop - end <= MAX_SMALL_BYTES or row.nbytes >= recorded.max_split
            front = stop if unsplit else fronts.find(end, stop, freed)
            until = 0 if unsplit or front is not None else freed
            row = row._replace(nbytes=(front or end) - row.address, extensible_until=until)  # noqa: PLW2901 - same block
        kept.append(row)
    return kept


class _FreeBlockStarts:
    """Start addresses of initially free blocks, as shown by the first allocation in each."""

    def __init__(self, trace: NDArray[np.void]) -> None:
        allocs = np.flatnonzero(trace["action"] == Action.ALLOC)
        self._entries = allocs[np.argsort(trace["address"][allocs], kind="stable")]
        self._addresses = trace["address"][self._entries]

    def find(self, end: int, stop: int, freed: int) -> int | None:
        """Return the start of the free block between `end` and `stop`; None if no allocation shows it.

        `freed` is the entry that frees the block before `end`.
        """
        low, high = np.searchsorted(self._addresses, (end, stop))
        if low == high:
            return None
        first = low + int(np.argmin(self._entries[low:high]))
        front = int(self._addresses[first])
        return front if self._entries[first] < freed and front - end <= MAX_SMALL_BYTES else None
