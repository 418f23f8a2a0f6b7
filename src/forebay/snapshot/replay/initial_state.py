"""The state in which a history began: the final segments and blocks, with the history undone.

What happened first to an address tells what was there before: who is freed first was live, who is released first was
reserved; what nothing happened to is as it is in the end. Gaps between blocks were free. A ring that lost its beginning
only begins later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.snapshot.model import Action, Snapshot, State
from forebay.snapshot.replay.address_space import Spaces, spaces_of
from forebay.snapshot.replay.recorded_settings import Recorded

__all__ = ["LOOSE", "Block", "Start", "start_of"]

LOOSE = _SMALL = 1 << 20  # the largest block of the small kind


class Block(NamedTuple):
    """One that was live."""

    address: int
    nbytes: int
    requested: int
    queue: int
    home: int
    loose: int = 0  # until this entry, which frees it, it may reach a little further than `nbytes`: up to LOOSE


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Everything by address. Rows are plain tuples of numbers."""

    segments: list[tuple[int, int, int, bool, int]]  # address, size, queue, small, home
    spaces: Spaces
    blocks: list[Block]  # live ones


def start_of(snapshot: Snapshot, recorded: Recorded) -> Start:
    """Work it out; what makes no sense (blocks in no segment, segments in one another) is left away."""
    segments = _segments(snapshot, recorded)
    spaces = spaces_of(snapshot, recorded)
    areas = sorted([(address, nbytes) for address, nbytes, *_ in segments] + spaces.pages)
    large = {address for address, _, _, small, _ in segments if not small}
    kept, last = [], 0
    for address, nbytes in areas:
        if address >= last:
            kept.append((address, nbytes))
            last = address + nbytes
    whole = {address for address, _ in kept}
    segments = [row for row in segments if row[0] in whole]
    spaces.pages = [row for row in spaces.pages if row[0] in whole]
    return Start(segments, spaces, _blocks(snapshot, recorded, kept, large))


def _first_of_each(trace: NDArray[np.void], *actions: Action) -> NDArray[np.intp]:
    """Of the entries of these kinds, the first about each address; by address."""
    rows = np.flatnonzero(np.isin(trace["action"], actions))
    _, first = np.unique(trace["address"][rows], return_index=True)
    return rows[first]


def _segments(snapshot: Snapshot, recorded: Recorded) -> list[tuple[int, int, int, bool, int]]:
    trace = snapshot.trace
    touched = _first_of_each(trace, Action.RESERVE, Action.RELEASE)
    final = snapshot.segments[snapshot.segments["growing"] == 0]
    stayed = final[~np.isin(final["address"], trace["address"][touched])]
    touched = touched[trace["action"][touched] == Action.RELEASE]
    kinds, gone = recorded.kinds(touched), trace[touched]
    names = ("address", "nbytes", "queue", "small", "home")
    rows = [
        *zip(*(stayed[name].tolist() for name in names), strict=True),
        *zip(
            *(gone[name].tolist() for name in ("address", "nbytes", "queue")), kinds, gone["home"].tolist(), strict=True
        ),
    ]
    return sorted((address, nbytes, queue, bool(small), home) for address, nbytes, queue, small, home in rows)


def _blocks(snapshot: Snapshot, recorded: Recorded, areas: list[tuple[int, int]], large: set[int]) -> list[Block]:
    entries = _first_of_each(snapshot.trace, Action.TAKE, Action.GIVEN)
    touched = snapshot.trace[entries]
    ends = dict(zip(touched["address"].tolist(), entries.tolist(), strict=True))  # of blocks whose size is not known
    fronts = _Fronts(snapshot.trace)
    final = snapshot.blocks[snapshot.blocks["state"] != State.FREE]
    stayed = final[~np.isin(final["address"], touched["address"])]
    gone = touched[touched["action"] == Action.GIVEN]
    where = snapshot.segments[stayed["segment"]]
    columns = (
        (stayed["address"], gone["address"]),
        (stayed["nbytes"], recorded.rounded(gone["nbytes"])),
        (stayed["requested"], gone["nbytes"]),
        (where["queue"], gone["queue"]),
        (where["home"], gone["home"]),
    )
    rows = sorted(Block(*row) for row in zip(*(np.concatenate(pair).tolist() for pair in columns), strict=True))
    kept: list[Block] = []
    rest, area = iter([*areas, (1 << 64, 0)]), (0, 0)
    for row, after in zip(rows, [*rows[1:], None], strict=False):
        while sum(area) <= row.address:
            area = next(rest)
        stop = min(sum(area), after.address) if after else sum(area)
        if row.address < area[0] or row.address + row.nbytes > stop:
            continue
        if area[0] in large and (freed := ends.get(row.address)) is not None:
            end = row.address + row.nbytes
            # No block of the large kind is that small: what is behind this one is its own, too.
            whole = stop - end <= _SMALL or row.nbytes >= recorded.max_split
            front = stop if whole else fronts.behind(end, stop, freed)
            loose = 0 if whole or front is not None else freed
            row = row._replace(nbytes=(front or end) - row.address, loose=loose)  # noqa: PLW2901 - the same block
        kept.append(row)
    return kept


class _Fronts:
    """Where free blocks begin, as the first allocation in each shows."""

    def __init__(self, trace: NDArray[np.void]) -> None:
        takes = np.flatnonzero(trace["action"] == Action.TAKE)
        self._entries = takes[np.argsort(trace["address"][takes], kind="stable")]
        self._addresses = trace["address"][self._entries]

    def behind(self, end: int, stop: int, freed: int) -> int | None:
        """The front of what is free from `end`, or a little later, to `stop`; None where nothing shows it.

        `freed` is the entry that frees who lies before.
        """
        low, high = np.searchsorted(self._addresses, (end, stop))
        if low == high:
            return None
        first = low + int(np.argmin(self._entries[low:high]))
        front = int(self._addresses[first])
        return front if self._entries[first] < freed and front - end <= _SMALL else None
