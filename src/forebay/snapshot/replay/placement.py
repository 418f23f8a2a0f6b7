"""Placement of the state in which a history began on a simulated device."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from forebay.simulate.initial_memory import InitialMemory
from forebay.snapshot.replay.address_space import Reservation
from forebay.snapshot.replay.initial_state import InitialState, LiveBlock

__all__ = ["Area", "carve", "place", "reserved_bytes"]

Area = tuple[int, int, int]  # address and size in the recording, and where the area begins on the device


def reserved_bytes(initial: InitialState) -> int:
    """Return the bytes that were reserved at the beginning."""
    return sum(nbytes for _, nbytes, *_ in initial.segments) + sum(nbytes for _, nbytes in initial.spaces.pages)


def place(memory: InitialMemory, initial: InitialState, number_of: Callable[[int], int]) -> dict[int, Any]:
    """Reserve the segments of an initial state and allocate its blocks in them, with the gaps between them.

    Addresses differ from those of the recording; their order does not.

    Parameters
    ----------
    memory : InitialMemory
        The memory of a device.
    initial : InitialState
        The state.
    number_of : callable
        Returns the allocator's number for a private pool of the recording.

    Returns
    -------
    dict
        The blocks by their recorded addresses.

    Raises
    ------
    OutOfMemory
        If the device has less memory than was reserved.
    ValueError
        If no allocator has segments or pages of these sizes.
    """
    segments = {row[0]: row for row in initial.segments}
    spaces = {space.address: space for space in initial.spaces.first}
    areas: list[Area] = []
    moved: list[tuple[Reservation, int]] = []  # each space, and where it begins on the device
    for address in sorted([*segments, *spaces]):
        if (space := spaces.get(address)) is not None:
            queue, small, pool = space.owner
            page = _page(memory, initial, space)
            placed = memory.reserve_space(space.end - space.address, page, queue, small, number_of(pool))
            moved.append((space, placed))
        else:
            _, nbytes, queue, small, pool = segments[address]
            areas.append((address, nbytes, memory.reserve_segment(nbytes, queue, small, number_of(pool))))
    areas += _commit(memory, initial.spaces.pages, moved)
    return carve(memory, sorted(areas), initial.blocks)


def _page(memory: InitialMemory, initial: InitialState, space: Reservation) -> int:
    """Return the size of the pages of a space: the allocator's, unless the recorded ones contradict it."""
    page = memory.page_bytes(space.owner[1])
    pages = initial.spaces.pages  # by address; a search, as a file of others may have very many spaces
    own = pages[bisect_left(pages, (space.address, 0)) : bisect_left(pages, (space.end, 0))]
    fits = all((address - space.address) % page == 0 == nbytes % page for address, nbytes in own)
    return page if fits else initial.spaces.page


def _commit(
    memory: InitialMemory, pages: list[tuple[int, int]], moved: list[tuple[Reservation, int]]
) -> Iterator[Area]:
    """Commit the pages, each in its space, both by address."""
    remaining = iter(moved)
    space, begin = next(remaining, (None, 0))
    for address, nbytes in pages:
        while space is not None and address >= space.end:
            space, begin = next(remaining, (None, 0))
        if space is None or address < space.address:
            continue
        placed = begin + address - space.address
        if memory.commit(placed, nbytes):
            yield address, nbytes, placed


def carve(allocator: Any, areas: Iterable[Area], rows: list[LiveBlock]) -> dict[int, Any]:
    """Allocate the blocks at their addresses in the areas.

    Parameters
    ----------
    allocator
        The allocator, which has adopted the areas.
    areas : iterable of tuple
        The areas, by recorded address.
    rows : list of LiveBlock
        The blocks, by recorded address.

    Returns
    -------
    dict
        The blocks by their recorded addresses.
    """
    blocks: dict[int, Any] = {}
    fillers = []
    remaining = iter([*rows, (1 << 64, 0)])
    address, nbytes, *_ = next(remaining)
    for area, length, placed in areas:
        at, shift = area, placed - area
        while address < area + length:
            if address >= at:
                if address > at:
                    fillers.append(allocator.allocate_at(at + shift, address - at))
                blocks[address] = allocator.allocate_at(address + shift, nbytes)
                at = address + nbytes
            address, nbytes, *_ = next(remaining)
    fillers.clear()
    return blocks
