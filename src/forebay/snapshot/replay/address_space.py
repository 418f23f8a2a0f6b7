"""Address space reserved for expandable segments over a history: lifetime, extent and mapped pages.

A recording contains pages only. Address space is reserved when its first page is mapped and released with its last;
another queue may then reserve the same addresses.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import Action, Snapshot
from forebay.snapshot.replay.ordered import SortedAddresses
from forebay.snapshot.replay.recorded_settings import RecordedSettings

__all__ = ["Owner", "Reservation", "Reservations", "reconstruct_reservations"]

_MAX_EXTENT = 1 << 41
_MAX_EXTENDED = 2_000  # extending is quadratic in the number of reservations

Owner = tuple[int, bool, int]  # queue, small pool or not, private pool id


@dataclass(slots=True)
class Reservation:
    """One reservation of address space, as far as its pages were ever mapped."""

    address: int
    end: int
    owner: Owner
    mapped: int
    born: int = -1  # the entry that created it
    died: int = 1 << 62


@dataclass(slots=True)
class Reservations:
    """All reservations of a history, and the pages `(address, size)` that were mapped when it began."""

    first: list[Reservation] = field(default_factory=list)  # those at the beginning, by address
    pages: list[tuple[int, int]] = field(default_factory=list)
    opened: dict[int, Reservation] = field(default_factory=dict)  # by the entry that maps the first page
    closed: dict[int, Reservation] = field(default_factory=dict)  # by the entry that unmaps the last page
    page: int = 1  # greatest common divisor of all sizes


def reconstruct_reservations(snapshot: Snapshot, recorded: RecordedSettings) -> Reservations:
    """Reconstruct the reservations from the mapped and unmapped pages of a history."""
    final = snapshot.segments[snapshot.segments["growing"] != 0]
    moved = np.flatnonzero(np.isin(snapshot.trace["action"], (Action.MAP, Action.UNMAP)))
    moves = snapshot.trace[moved]
    found = Reservations()
    if not len(final) and not len(moves):
        return found
    owners = _owners(final, moves, recorded.are_small(moved))
    starts = np.concatenate([final["address"], moves["address"]])
    ends = starts + np.concatenate([final["nbytes"], moves["nbytes"]])
    edges = np.unique(np.concatenate([starts, ends]))
    if len(edges) > 1:
        found.page = int(np.gcd.reduce(np.diff(edges)))
    barriers = _barriers(snapshot)
    initial_rows = _owners_at_start(starts, ends, edges, len(final), moves["action"] == Action.MAP)
    _set_initial(found, initial_rows, owners, edges, barriers)

    alive = _Alive(found.first)
    rows = zip(moved.tolist(), moves["action"].tolist(), starts[len(final) :].tolist(), ends[len(final) :].tolist(),
               owners[len(final) :], strict=True)  # fmt: skip
    for entry, action, start, end, owner in rows:
        if action == Action.MAP:
            space = _extensible(alive.nearest(start), start, owner, barriers)
            if space is None:
                space = found.opened[entry] = Reservation(start, end, owner, 0, entry)
                alive.add(space)
            alive.extend(space, start, end)
            space.mapped += end - start
        elif space := alive.containing(start):
            space.mapped -= end - start
            if space.mapped <= 0:
                found.closed[entry] = space
                space.died = entry
                alive.remove(space)
    _extend([*found.first, *found.opened.values()], barriers, found.page)
    return found


def _extend(spaces: list[Reservation], barriers: list[int], page: int) -> None:
    """Extend each reservation to the next obstacle.

    A reservation is larger than its mapped part, and the free space behind a block affects which block best fit takes.
    """
    if len(spaces) > _MAX_EXTENDED:
        return
    ends = []
    for space in spaces:
        at = bisect_left(barriers, space.end)
        others = [
            other.address
            for other in spaces
            if other.address >= space.end and other.born <= space.died and space.born <= other.died
        ]
        limit = min([space.end + _MAX_EXTENT, *barriers[at : at + 1], *others])
        ends.append(space.end + (limit - space.end) // page * page)
    for space, end in zip(spaces, ends, strict=True):
        space.end = end


def _owners(final: NDArray[np.void], moves: NDArray[np.void], moves_small: list[bool]) -> list[Owner]:
    small = [*(final["small"] != 0).tolist(), *moves_small]
    queues = np.concatenate([final["queue"], moves["queue"]]).tolist()
    pools = np.concatenate([final["pool"], moves["pool"]]).tolist()
    return list(zip(queues, small, pools, strict=True))


def _barriers(snapshot: Snapshot) -> list[int]:
    """Return the start addresses that ordinary segments ever had: no reservation extends across them."""
    trace, final = snapshot.trace, snapshot.segments
    moved = np.isin(trace["action"], (Action.RESERVE, Action.RELEASE))
    barriers: list[int] = np.unique(
        np.concatenate([trace["address"][moved], final["address"][final["growing"] == 0]])
    ).tolist()
    return barriers


def _owners_at_start(
    starts: NDArray[np.uint64],
    ends: NDArray[np.uint64],
    edges: NDArray[np.uint64],
    final: int,
    mapped: NDArray[np.bool_],
) -> list[int]:
    """Return, for each range between two edges, the row of its initial owner; -1 if the range was not mapped."""
    begin, end = np.searchsorted(edges, starts), np.searchsorted(edges, ends)
    rows = [-1] * len(edges)
    # The oldest entry of a range counts, and the final state where there is none. `unset` leads from each range to the
    # next one that has no owner yet, so that each is visited once.
    unset = list(range(len(edges) + 1))
    for row in (*range(final, len(starts)), *range(final)):
        owner = -1 if row >= final and mapped[row - final] else row
        at, stop = _skip(unset, int(begin[row])), int(end[row])
        while at < stop:
            rows[at], unset[at] = owner, at + 1
            at = _skip(unset, at + 1)
    return rows


def _skip(following: list[int], at: int) -> int:
    """Follow the numbers from `at` to one that leads to itself, and shorten the path."""
    while (after := following[at]) != at:
        following[at] = following[after]
        at = after
    return at


def _set_initial(
    found: Reservations, rows: list[int], owners: list[Owner], edges: NDArray[np.uint64], barriers: list[int]
) -> None:
    """Set the reservations and pages of the beginning."""
    addresses = edges.tolist()
    for row, start, end in zip(rows, addresses, addresses[1:], strict=False):
        if row < 0:
            continue
        space = _extensible(found.first[-1] if found.first else None, start, owners[row], barriers)
        if space is None:
            space = Reservation(start, start, owners[row], 0)
            found.first.append(space)
        if found.pages and space.end == start == sum(found.pages[-1]):
            found.pages[-1] = found.pages[-1][0], end - found.pages[-1][0]
        else:
            found.pages.append((start, end - start))
        space.end = end
        space.mapped += end - start


def _extensible(nearest: Reservation | None, address: int, owner: Owner, barriers: list[int]) -> Reservation | None:
    """Return the nearest reservation if it may extend to the address: nothing of another owner lies between."""
    if nearest is None or nearest.owner != owner:
        return None
    low, high = sorted((nearest.address, address))
    return nearest if bisect_left(barriers, low) == bisect_left(barriers, high) else None


class _Alive:
    """The reservations that exist at one moment, by address. Of two at one address, only the older is found."""

    def __init__(self, spaces: list[Reservation]) -> None:
        self._addresses = SortedAddresses()
        self._spaces: dict[int, Reservation] = {}
        for space in spaces:
            self.add(space)

    def add(self, space: Reservation) -> None:
        if self._spaces.setdefault(space.address, space) is space:
            self._addresses.add(space.address)

    def remove(self, space: Reservation) -> None:
        if self._spaces.get(space.address) is space:
            del self._spaces[space.address]
            self._addresses.remove(space.address)

    def extend(self, space: Reservation, start: int, end: int) -> None:
        """Extend a reservation so that it includes a range."""
        if start < space.address:
            self.remove(space)
            space.address = start
            self.add(space)
        space.end = max(space.end, end)

    def containing(self, address: int) -> Reservation | None:
        start = self._addresses.at_or_before(address)
        return space if start is not None and address < (space := self._spaces[start]).end else None

    def nearest(self, address: int) -> Reservation | None:
        """Return the reservation with the smallest distance to an address, of equals the oldest."""
        starts = self._addresses.at_or_before(address), self._addresses.after(address)
        spaces = [self._spaces[start] for start in starts if start is not None]
        return min(
            spaces,
            key=lambda space: (max(space.address - address, address - space.end, 0), space.born, space.address),
            default=None,
        )
