"""Placement of the state in which a history began on a simulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.snapshot.replay.address_space import Reservation
from forebay.snapshot.replay.initial_state import InitialState, LiveBlock
from forebay.spi import Growable

__all__ = ["Area", "carve", "place", "reserved_bytes"]

Area = tuple[int, int, int]  # address and size in the recording, and where the area begins on the device

_SMALL_PAGE = 2 << 20


def reserved_bytes(initial: InitialState) -> int:
    """Return the bytes that were reserved at the beginning."""
    return sum(nbytes for _, nbytes, *_ in initial.segments) + sum(nbytes for _, nbytes in initial.spaces.pages)


def place(
    allocator: SegmentAllocator, initial: InitialState, number_of: Callable[[int], int], total: int
) -> dict[int, Any]:
    """Reserve the segments of an initial state and allocate its blocks in them, with the gaps between them.

    Addresses differ from those of the recording; their order does not.

    Parameters
    ----------
    allocator : SegmentAllocator
        An allocator that has not reserved memory, with expandable segments switched on, so that blocks of any size can
        be placed.
    initial : InitialState
        The state.
    number_of : callable
        Returns the allocator's number for a private pool of the recording.
    total : int
        Memory of the device in bytes.

    Returns
    -------
    dict
        The blocks by their recorded addresses.

    Raises
    ------
    OutOfMemory
        If the device has less memory than was reserved.
    """
    segments = {row[0]: row for row in initial.segments}
    spaces = {space.address: space for space in initial.spaces.first}
    areas: list[Area] = []
    moved: list[tuple[Reservation, int]] = []  # each space, and where it begins on the device
    for address in sorted([*segments, *spaces]):
        if (space := spaces.get(address)) is not None:
            moved.append((space, _reserve_space(allocator, initial, space, number_of, total)))
        else:
            _, nbytes, queue, small, pool = segments[address]
            placed = allocator.port.reserve(nbytes)
            allocator.adopt(placed, nbytes, queue, small, None, number_of(pool))
            areas.append((address, nbytes, placed))
    areas += _commit(allocator, initial.spaces.pages, moved)
    return carve(allocator, sorted(areas), initial.blocks)


def _reserve_space(
    allocator: SegmentAllocator,
    initial: InitialState,
    space: Reservation,
    number_of: Callable[[int], int],
    total: int,
) -> int:
    """Reserve the address space of an expandable segment, as large as the allocator would."""
    queue, small, pool = space.owner
    fine = small or allocator.port.props.fine_segments
    page = _SMALL_PAGE if fine else allocator.settings.large_segment_size
    own = [row for row in initial.spaces.pages if space.address <= row[0] < space.end]
    if any((address - space.address) % page or nbytes % page for address, nbytes in own):
        page = initial.spaces.page
    nbytes = max(space.end - space.address, allocator.settings.expandable_reserve(total))
    return allocator.reserve_space(-(-nbytes // page) * page, page, queue, small, number_of(pool))


def _commit(
    allocator: SegmentAllocator, pages: list[tuple[int, int]], moved: list[tuple[Reservation, int]]
) -> Iterator[Area]:
    """Commit the pages, each in its space, both by address."""
    port, remaining = allocator.port, iter(moved)
    space, begin = next(remaining, (None, 0))
    for address, nbytes in pages:
        while space is not None and address >= space.end:
            space, begin = next(remaining, (None, 0))
        if space is None or address < space.address or not isinstance(port, Growable):
            continue
        placed = begin + address - space.address
        if allocator.begin_commit(placed, nbytes):
            port.commit(placed, nbytes)
            allocator.commit_done(placed, 0)
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
