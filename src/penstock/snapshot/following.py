"""A recorded history, followed: the allocator chooses each block anew, and the recording says whether it chose the same.

Segments come, go and lie as recorded; what is asked of the allocator is where in them a request goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from penstock.sizes import format_bytes
from penstock.simulate import Device
from penstock.snapshot.model import BLOCK, Action, Snapshot, State
from penstock.snapshot.recorded_settings import Recorded
from penstock.snapshot.start import Block, Start

__all__ = ["Check", "Difference", "Progress", "follow"]

Progress = Callable[[int, int], None]  # entries done, entries in all

_ANY = 1 << 40  # bytes of a device that is asked for none
_MOST_BYTES = 1 << 60
_CHUNK = 1 << 14
_MENDED = 10_000  # differences after which it is pointless


@dataclass(frozen=True, slots=True)
class Difference:
    """An allocation that went elsewhere; `entry` counts from 0, `placed` is None where there was no room for it."""

    entry: int
    nbytes: int
    queue: int
    recorded: int
    placed: int | None

    def __str__(self) -> str:
        where = "found no room" if self.placed is None else f"went to {self.placed:#x}"
        return (
            f"entry {self.entry:,}: {format_bytes(self.nbytes)} for stream {self.queue} {where}, "
            f"and was recorded at {self.recorded:#x}"
        )


@dataclass(frozen=True, slots=True)
class Check:
    """How many allocations the replay placed as recorded, and the first that it did not.

    `by_arrival`: of equal free blocks that of the oldest segment goes first, as since PyTorch 2.10; else that at the
    lowest address.
    """

    placed: int
    total: int
    by_arrival: bool
    first: Difference | None

    @property
    def equal(self) -> bool:
        return self.placed == self.total


def follow(
    snapshot: Snapshot, recorded: Recorded, start: Start, *, by_arrival: bool, progress: Progress | None = None
) -> Check:
    """Replay every entry from that state."""
    trace = snapshot.trace
    pool = (device := Device(_ANY, "expandable_segments:True")).allocator  # blocks of any size can be laid
    homes = np.union1d(snapshot.segments["home"], trace["home"])
    for home in homes[homes != 0].tolist():
        pool.make_home(home)
    blocks = _lay(device, start, by_arrival=by_arrival)
    device.apply_settings(recorded.text if recorded.grows else f"expandable_segments:False,{recorded.text}".rstrip(","))

    reserves = np.flatnonzero(trace["action"] == Action.RESERVE)
    small = dict(zip(reserves.tolist(), recorded.kinds(reserves), strict=True))
    names = ("action", "address", "nbytes", "queue", "home")
    placed = total = differences = 0
    first = None
    take, give = pool.take, blocks.pop
    for begin in range(0, len(trace), _CHUNK):
        chunk = trace[begin : begin + _CHUNK]
        rows = zip(range(begin, begin + _CHUNK), *(chunk[name].tolist() for name in names), strict=False)
        for entry, action, address, nbytes, queue, home in rows:
            if action == Action.TAKE:
                total += 1
                block = take(nbytes, queue, home) if 0 < nbytes < _MOST_BYTES else None
                where, blocks[address] = None if block is None else block.address, block
                del block  # whoever holds a block keeps it from being free
                if where == address:
                    placed += 1
                    continue
                first = first or Difference(entry, nbytes, queue, address, where)
                give(address)
                differences += 1
                if differences <= _MENDED and 0 < nbytes < _MOST_BYTES:
                    _put(device, blocks, address, nbytes)
            elif action == Action.GIVEN:
                give(address, None)
            elif action == Action.RESERVE:
                with suppress(ValueError):  # on top of another: what goes wrong then is told
                    pool.adopt(address, nbytes, queue, small[entry], None if by_arrival else address, home)
            elif action == Action.RELEASE:
                pool.evict(address)
            elif action == Action.MAP:
                if pool.come(address, nbytes):
                    pool.came(address, 0)
            elif action == Action.UNMAP and pool.leave(address, nbytes):
                pool.left(address)
        if progress is not None:
            progress(min(begin + _CHUNK, len(trace)), len(trace))
    return Check(placed, total, by_arrival, first)


def _lay(device: Device, start: Start, *, by_arrival: bool) -> dict[int, object]:
    """Segments and blocks where the start says; gives the blocks by address."""
    pool = device.allocator
    areas = list(start.pages)
    for address, nbytes, queue, small, home in start.segments:
        with suppress(ValueError):
            pool.adopt(address, nbytes, queue, small, None if by_arrival else address, home)
            areas.append((address, nbytes))
    for space in start.spaces:
        with suppress(ValueError):
            pool.adopt_space(space.address, space.nbytes, space.page, space.queue, space.small, space.home)
    for address, nbytes in start.pages:
        if pool.come(address, nbytes):
            pool.came(address, 0)
    return _carve(device, sorted(areas), start.blocks)


def _carve(device: Device, areas: Iterable[tuple[int, int]], rows: list[Block]) -> dict[int, object]:
    pool = device.allocator
    blocks: dict[int, object] = {}
    fillers = []
    waiting = iter([*rows, (1 << 64, 0)])
    address, nbytes, *_ = next(waiting)
    for area, length in areas:
        at = area
        while address < area + length:
            if address >= at:
                if address > at:
                    fillers.append(pool.take_at(at, address - at))
                blocks[address] = pool.take_at(address, nbytes)
                at = address + nbytes
            address, nbytes, *_ = next(waiting)
    fillers.clear()
    return blocks


def _put(device: Device, blocks: dict[int, object], address: int, nbytes: int) -> None:
    """A block where the recording has it, if something is free there, so that one difference does not cause others."""
    pool = device.allocator
    table = np.frombuffer(pool.tables(trace=False)[1], BLOCK)
    at = int(np.searchsorted(table["address"], address, "right")) - 1
    if at < 0 or table["state"][at] != State.FREE or address >= int(table["address"][at] + table["nbytes"][at]):
        return
    start = int(table["address"][at])
    filler = pool.take_at(start, address - start) if address > start else None
    if (block := pool.take_at(address, nbytes)) is not None:
        blocks[address] = block
    del filler
