"""The state in which a history began: the final segments and blocks, with the history undone.

What happened first to an address tells what was there before: who is freed first was live, who is released first was
reserved; what nothing happened to is as it is in the end. Gaps between blocks were free. A ring that lost its beginning
only begins later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.snapshot.model import Action, Snapshot, State
from penstock.snapshot.recorded_settings import Recorded

__all__ = ["Block", "Space", "Start", "start_of"]

_SMALL = 1 << 20  # the largest block of the small kind

_U8 = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Space:
    """Address space of growing segments: of one queue, kind and home."""

    address: int
    nbytes: int
    queue: int
    small: bool
    home: int
    page: int  # what comes and goes is a multiple of it


class Block(NamedTuple):
    """One that was live."""

    address: int
    nbytes: int
    requested: int
    queue: int
    home: int


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Everything by address. Rows are plain tuples of numbers."""

    segments: list[tuple[int, int, int, bool, int]]  # address, size, queue, small, home
    spaces: list[Space]
    pages: list[tuple[int, int]]  # address and size: of the spaces, what has memory
    blocks: list[Block]  # live ones


def start_of(snapshot: Snapshot, recorded: Recorded) -> Start:
    """Work it out; what makes no sense (blocks in no segment, segments in one another) is left away."""
    segments = _segments(snapshot, recorded)
    spaces, pages = _growing(snapshot, recorded)
    areas = sorted([(address, nbytes) for address, nbytes, *_ in segments] + pages)
    large = {address for address, _, _, small, _ in segments if not small}
    kept, last = [], 0
    for address, nbytes in areas:
        if address >= last:
            kept.append((address, nbytes))
            last = address + nbytes
    whole = {address for address, _ in kept}
    segments = [row for row in segments if row[0] in whole]
    pages = [row for row in pages if row[0] in whole]
    return Start(segments, spaces, pages, _blocks(snapshot, recorded, kept, large))


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
    rows = [
        *zip(*(stayed[name].tolist() for name in ("address", "nbytes", "queue", "small", "home")), strict=True),
        *zip(*(gone[name].tolist() for name in ("address", "nbytes", "queue")), kinds, gone["home"].tolist(), strict=True),
    ]
    return sorted((address, nbytes, queue, bool(small), home) for address, nbytes, queue, small, home in rows)


def _growing(snapshot: Snapshot, recorded: Recorded) -> tuple[list[Space], list[tuple[int, int]]]:
    """The address space in which pages came or went, and what of it had memory."""
    final = snapshot.segments[snapshot.segments["growing"] != 0]
    moved = np.flatnonzero(np.isin(snapshot.trace["action"], (Action.MAP, Action.UNMAP)))
    moves = snapshot.trace[moved]
    if not len(final) and not len(moves):
        return [], []
    starts = np.concatenate([final["address"], moves["address"]])
    ends = starts + np.concatenate([final["nbytes"], moves["nbytes"]])
    edges = np.unique(np.concatenate([starts, ends]))
    begin, end = np.searchsorted(edges, starts), np.searchsorted(edges, ends)
    there = np.zeros(len(edges), bool)
    owner = np.full(len(edges), -1)  # of each piece between two edges, a row of what told of it
    for row in range(len(final)):
        there[begin[row] : end[row]] = True
        owner[begin[row] : end[row]] = row
    came = moves["action"] == Action.MAP
    for row in range(len(moves) - 1, -1, -1):  # who tells of a piece first has the last word
        at = row + len(final)
        there[begin[at] : end[at]] = not came[row]
        owner[begin[at] : end[at]] = at
    owners = _owners(final, moves, recorded.kinds(moved))
    page = int(np.gcd.reduce(np.diff(edges))) if len(edges) > 1 else 0
    return _spaces(edges, there, [owners[row] if row >= 0 else None for row in owner], _walls(snapshot), page)


def _walls(snapshot: Snapshot) -> _U8:
    """Where segments that do not grow begin, at any time."""
    trace, final = snapshot.trace, snapshot.segments
    moved = np.isin(trace["action"], (Action.RESERVE, Action.RELEASE))
    return np.unique(np.concatenate([trace["address"][moved], final["address"][final["growing"] == 0]]))


def _owners(final: NDArray[np.void], moves: NDArray[np.void], came_for: list[bool]) -> list[tuple[int, bool, int]]:
    kinds = [*(final["small"] != 0).tolist(), *came_for]
    queues = np.concatenate([final["queue"], moves["queue"]]).tolist()
    homes = np.concatenate([final["home"], moves["home"]]).tolist()
    return list(zip(queues, kinds, homes, strict=True))


def _spaces(
    edges: _U8, there: NDArray[np.bool_], owners: list[tuple[int, bool, int] | None], walls: _U8, page: int
) -> tuple[list[Space], list[tuple[int, int]]]:
    """Pieces of one owner are of one space, unless another kind of segment lies between them."""
    spaces: list[Space] = []
    pages: list[tuple[int, int]] = []
    ends, sides = edges[1:].tolist(), np.searchsorted(walls, edges).tolist()
    last = None  # whose the space before is, and on which side of the walls
    joined = False  # whether the piece before had memory, too
    for address, stop, mapped, owner, side in zip(edges.tolist(), ends, there.tolist(), owners, sides, strict=False):
        if owner is None:
            joined = False
            continue
        if (owner, side) == last:
            spaces[-1] = replace(spaces[-1], nbytes=stop - spaces[-1].address)
        else:
            spaces.append(Space(address, stop - address, *owner, page))
            joined = False
        if mapped and joined:
            pages[-1] = pages[-1][0], stop - pages[-1][0]
        elif mapped:
            pages.append((address, stop - address))
        last, joined = (owner, side), mapped
    return spaces, pages


def _blocks(
    snapshot: Snapshot, recorded: Recorded, areas: list[tuple[int, int]], large: set[int]
) -> list[Block]:
    touched = snapshot.trace[_first_of_each(snapshot.trace, Action.TAKE, Action.GIVEN)]
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
    rows = sorted(map(Block._make, zip(*(np.concatenate(pair).tolist() for pair in columns), strict=True)))
    kept: list[Block] = []
    rest, area = iter([*areas, (1 << 64, 0)]), (0, 0)
    for row, after in zip(rows, [*rows[1:], None], strict=False):
        while sum(area) <= row.address:
            area = next(rest)
        stop = min(sum(area), after.address) if after else sum(area)
        if row.address < area[0] or row.address + row.nbytes > stop:
            continue
        # No block of the large kind is that small: what is behind this one is its own, too.
        behind = stop - row.address - row.nbytes
        if area[0] in large and (behind <= _SMALL or row.nbytes >= recorded.max_split):
            row = row._replace(nbytes=stop - row.address)  # noqa: PLW2901 - the same block
        kept.append(row)
    return kept
