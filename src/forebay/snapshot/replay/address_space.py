"""Address space of growing segments over a history: which there was, from when to when, and what of it had memory.

A recording tells of pages only. Space is reserved when its first page comes and is gone with its last, and another
queue may reserve the same addresses then.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forebay.snapshot.model import Action, Snapshot
from forebay.snapshot.replay.recorded_settings import Recorded

__all__ = ["Owner", "Space", "Spaces", "spaces_of"]

_ROOM = 1 << 41
_MOST_SPACES = 2_000

Owner = tuple[int, bool, int]  # queue, whether for small blocks, home


@dataclass(slots=True)
class Space:
    """One reservation, as far as it is used."""

    address: int
    end: int
    owner: Owner
    mapped: int
    born: int = -1  # the entry before which it was not there
    died: int = 1 << 62


@dataclass(slots=True)
class Spaces:
    """`pages` (address, size) had memory when the history began; `page` is what all sizes are multiples of."""

    first: list[Space] = field(default_factory=list)  # there when it began, by address
    pages: list[tuple[int, int]] = field(default_factory=list)
    opened: dict[int, Space] = field(default_factory=dict)  # by the entry of the first page
    closed: dict[int, Space] = field(default_factory=dict)  # by the entry of the last
    page: int = 1


def spaces_of(snapshot: Snapshot, recorded: Recorded) -> Spaces:
    final = snapshot.segments[snapshot.segments["growing"] != 0]
    moved = np.flatnonzero(np.isin(snapshot.trace["action"], (Action.MAP, Action.UNMAP)))
    moves = snapshot.trace[moved]
    found = Spaces()
    if not len(final) and not len(moves):
        return found
    owners = _owners(final, moves, recorded.kinds(moved))
    starts = np.concatenate([final["address"], moves["address"]])
    ends = starts + np.concatenate([final["nbytes"], moves["nbytes"]])
    edges = np.unique(np.concatenate([starts, ends]))
    if len(edges) > 1:
        found.page = int(np.gcd.reduce(np.diff(edges)))
    walls = _walls(snapshot)
    _begin(
        found, _owners_at_start(starts, ends, edges, len(final), moves["action"] == Action.MAP), owners, edges, walls
    )

    living = list(found.first)
    rows = zip(moved.tolist(), moves["action"].tolist(), starts[len(final) :].tolist(), ends[len(final) :].tolist(),
               owners[len(final) :], strict=True)  # fmt: skip
    for entry, action, start, end, owner in rows:
        if action == Action.MAP:
            space = _nearest(living, start, owner, walls)
            if space is None:
                space = found.opened[entry] = Space(start, end, owner, 0, entry)
                living.append(space)
            space.address, space.end = min(space.address, start), max(space.end, end)
            space.mapped += end - start
        elif space := next((space for space in living if space.address <= start < space.end), None):
            space.mapped -= end - start
            if space.mapped <= 0:
                found.closed[entry] = space
                space.died = entry
                living.remove(space)
    _reach([*found.first, *found.opened.values()], walls, found.page)
    return found


def _reach(spaces: list[Space], walls: list[int], page: int) -> None:
    """A reservation is larger than what is used of it, and how much is behind a block has a say in which is taken."""
    if len(spaces) > _MOST_SPACES:
        return
    ends = []
    for space in spaces:
        at = bisect_left(walls, space.end)
        others = [
            other.address
            for other in spaces
            if other.address >= space.end and other.born <= space.died and space.born <= other.died
        ]
        limit = min([space.end + _ROOM, *walls[at : at + 1], *others])
        ends.append(space.end + (limit - space.end) // page * page)
    for space, end in zip(spaces, ends, strict=True):
        space.end = end


def _owners(final: NDArray[np.void], moves: NDArray[np.void], came_for: list[bool]) -> list[Owner]:
    kinds = [*(final["small"] != 0).tolist(), *came_for]
    queues = np.concatenate([final["queue"], moves["queue"]]).tolist()
    homes = np.concatenate([final["home"], moves["home"]]).tolist()
    return list(zip(queues, kinds, homes, strict=True))


def _walls(snapshot: Snapshot) -> list[int]:
    """Where segments that do not grow begin, at any time: no space reaches over them."""
    trace, final = snapshot.trace, snapshot.segments
    moved = np.isin(trace["action"], (Action.RESERVE, Action.RELEASE))
    walls: list[int] = np.unique(
        np.concatenate([trace["address"][moved], final["address"][final["growing"] == 0]])
    ).tolist()
    return walls


def _owners_at_start(
    starts: NDArray[np.uint64], ends: NDArray[np.uint64], edges: NDArray[np.uint64], final: int, came: NDArray[np.bool_]
) -> list[int]:
    """For each piece between two edges the row that tells whose it was when the history began; -1: it had no memory."""
    begin, end = np.searchsorted(edges, starts), np.searchsorted(edges, ends)
    owner = np.full(len(edges), -1)
    for row in range(final):
        owner[begin[row] : end[row]] = row
    for row in range(len(starts) - 1, final - 1, -1):  # who tells of a piece first has the last word
        owner[begin[row] : end[row]] = -1 if came[row - final] else row
    told: list[int] = owner.tolist()
    return told


def _begin(found: Spaces, rows: list[int], owners: list[Owner], edges: NDArray[np.uint64], walls: list[int]) -> None:
    places = edges.tolist()
    for row, start, end in zip(rows, places, places[1:], strict=False):
        if row < 0:
            continue
        space = _nearest(found.first[-1:], start, owners[row], walls)
        if space is None:
            space = Space(start, start, owners[row], 0)
            found.first.append(space)
        if found.pages and space.end == start == sum(found.pages[-1]):
            found.pages[-1] = found.pages[-1][0], end - found.pages[-1][0]
        else:
            found.pages.append((start, end - start))
        space.end = end
        space.mapped += end - start


def _nearest(living: list[Space], address: int, owner: Owner, walls: list[int]) -> Space | None:
    """The owner's space that may reach to the address: nothing of anybody else lies between."""
    best = None
    for space in living:
        distance = max(space.address - address, address - space.end, 0)
        if best is None or distance < best[0]:
            best = distance, space
    if best is None or best[1].owner != owner:
        return None
    low, high = sorted((best[1].address, address))
    return best[1] if bisect_left(walls, low) == bisect_left(walls, high) else None
