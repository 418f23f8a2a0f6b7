"""A recorded history, followed: the allocator chooses each block anew, and the recording says whether it chose so.

Segments come, go and lie as recorded; what is asked of the allocator is where in them a request goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.byte_sizes import format_bytes
from forebay.simulate import Device
from forebay.snapshot.model import BLOCK, Action, Snapshot, State
from forebay.snapshot.replay.address_space import Space
from forebay.snapshot.replay.initial_state import LOOSE, Block, Start
from forebay.snapshot.replay.recorded_settings import Recorded

__all__ = ["Check", "Difference", "Progress", "follow"]

Progress = Callable[[int, int], None]  # entries done, entries in all

_ANY = 1 << 40  # bytes of a device that is asked for none
_MOST_BYTES = 1 << 60
_QUANTUM = 512  # sizes of blocks are multiples of it
_CHUNK = 1 << 14
_ROUNDS = 20
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
    learned: int = 0  # things about the state at the beginning that only the choices tell

    @property
    def equal(self) -> bool:
        return self.placed == self.total


def follow(
    snapshot: Snapshot, recorded: Recorded, start: Start, *, by_arrival: bool, progress: Progress | None = None
) -> Check:
    """Replay every entry from that state.

    Two things a file does not tell of the state in which its history began: which of two segments is older, and how far
    some blocks reached. A choice that differs tells one or the other, and the replay is done again with it.
    """
    learned = _Learned()
    found: list[Check] = []
    news = True
    while news and len(found) < _ROUNDS and learned.consistent():
        run = _Follower(snapshot, recorded, start, by_arrival, learned)
        found.append(run.follow(progress))
        news = run.news and not found[-1].equal
    return max(found, key=lambda check: check.placed)


@dataclass(slots=True)
class _Learned:
    """About the state at the beginning."""

    older: dict[int, set[int]] = field(default_factory=dict)  # of a segment, those that are older
    longer: dict[int, int] = field(default_factory=dict)  # of a block, where it ends

    def count(self) -> int:
        return sum(map(len, self.older.values())) + len(self.longer)

    def consistent(self) -> bool:
        try:
            TopologicalSorter(self.older).prepare()
        except CycleError:
            return False
        return True


class _Follower:
    """One pass. `news`: it learned something."""

    def __init__(
        self, snapshot: Snapshot, recorded: Recorded, start: Start, by_arrival: bool, learned: _Learned
    ) -> None:
        self._trace = trace = snapshot.trace
        self._spaces, self._by_arrival, self._learned = start.spaces, by_arrival, learned
        blocks = [row._replace(nbytes=learned.longer.get(row.address, row.nbytes)) for row in start.blocks]
        self._loose = {row.address + row.nbytes: row for row in blocks if row.loose}
        device = Device(_ANY, "expandable_segments:True")  # blocks of any size can be laid
        self._pool = device.allocator
        homes = np.union1d(snapshot.segments["home"], trace["home"])
        for home in homes[homes != 0].tolist():
            self._pool.make_home(home)
        self._blocks = self._lay(start, blocks)
        device.apply_settings(f"expandable_segments:{recorded.grows}" + (recorded.text and f",{recorded.text}"))
        reserves = np.flatnonzero(trace["action"] == Action.RESERVE)
        self._small = dict(zip(reserves.tolist(), recorded.kinds(reserves), strict=True))
        # Where the segments of the beginning lie, as long as they are there.
        self._old = {row[0]: row[0] + row[1] for row in start.segments}
        self._old |= {space.address: space.end for space in start.spaces.first}
        self._grows = recorded.grows
        self._mended = 0
        self._came = 0  # where memory came for the allocation that follows
        self.news = False

    def follow(self, progress: Progress | None) -> Check:
        names = ("action", "address", "nbytes", "queue", "home")
        placed = total = 0
        first, known = None, self._learned.count()
        take, blocks = self._pool.take, self._blocks
        give = blocks.pop
        for begin in range(0, len(self._trace), _CHUNK):
            chunk = self._trace[begin : begin + _CHUNK]
            rows = zip(range(begin, begin + _CHUNK), *(chunk[name].tolist() for name in names), strict=False)
            for entry, action, address, nbytes, queue, home in rows:
                if action == 3:  # Action.GIVEN: to look the name up costs as much as the rest
                    give(address, None)
                elif action == 1:  # Action.TAKE
                    total += 1
                    if not 0 < nbytes < _MOST_BYTES:
                        block = None
                    elif self._came:
                        block = self._take_what_came(nbytes)
                    else:
                        block = take(nbytes, queue, home)
                        if block is None and self._grows:
                            block = self._take_before_bare(nbytes, queue, home)
                    where, blocks[address] = None if block is None else block.address, block
                    del block  # whoever holds a block keeps it from being free
                    if where == address:
                        placed += 1
                        continue
                    first = first or Difference(entry, nbytes, queue, address, where)
                    self._differs(entry, address, nbytes, where)
                else:
                    self._move(entry, action, address, nbytes, queue, home)
            if progress is not None:
                progress(min(begin + _CHUNK, len(self._trace)), len(self._trace))
        return Check(placed, total, self._by_arrival, first, known)

    def _move(self, entry: int, action: int, address: int, nbytes: int, queue: int, home: int) -> None:
        """Segments come and go."""
        pool, self._came = self._pool, 0
        if action == Action.RESERVE:
            if self._adopt(address, nbytes, queue, self._small[entry], home):
                self._came = address
        elif action == Action.RELEASE:
            pool.evict(address)
            self._old.pop(address, None)
        elif action == Action.MAP:
            if (space := self._spaces.opened.get(entry)) is not None:
                self._open(space)
            if pool.come(address, nbytes):
                pool.came(address, 0)
                self._came = address
        elif action == Action.UNMAP:
            if pool.leave(address, nbytes):
                pool.left(address)
            if (space := self._spaces.closed.get(entry)) is not None:
                pool.evict_space(space.address)
                self._old.pop(space.address, None)

    def _take_what_came(self, nbytes: int) -> Any:
        """Memory came for this request, which gets it: best fit is not asked again."""
        came, self._came = self._came, 0
        block = self._pool.take_at(came, nbytes)
        if (
            block is None and (there := _free_at(self._table(), came)) is not None
        ):  # pages join what is free before them
            block = self._pool.take_at(there[0], nbytes)
        return block

    def _take_before_bare(self, nbytes: int, queue: int, home: int) -> Any:
        """Who asks for pages and needs none, as what is free before them is enough, gets that."""
        address, missing = self._pool.room(nbytes, queue, home)
        if missing:
            self._pool.stayed(address)
            return None
        return self._pool.take_at(address, nbytes) if address else None

    def _table(self) -> NDArray[np.void]:
        return np.frombuffer(self._pool.tables(trace=False)[1], BLOCK)

    def _adopt(self, address: int, nbytes: int, queue: int, small: bool, home: int) -> bool:
        try:
            self._pool.adopt(address, nbytes, queue, small, None if self._by_arrival else address, home)
        except ValueError:  # on top of another: what goes wrong then is told
            return False
        return True

    def _open(self, space: Space) -> None:
        with suppress(ValueError):
            self._pool.adopt_space(space.address, space.end - space.address, self._spaces.page, *space.owner)

    def _lay(self, start: Start, blocks: list[Block]) -> dict[int, object]:
        """Segments and blocks where the start says; gives the blocks by address."""
        areas = list(start.spaces.pages)
        segments = {row[0]: row for row in start.segments}
        spaces = {space.address: space for space in start.spaces.first}
        for address in _by_age(sorted([*segments, *spaces]), self._learned.older):
            if (space := spaces.get(address)) is not None:
                self._open(space)
            elif self._adopt(*segments[address]):
                areas.append(segments[address][:2])
        for address, nbytes in start.spaces.pages:
            if self._pool.come(address, nbytes):
                self._pool.came(address, 0)
        return _carve(self._pool, sorted(areas), blocks)

    def _differs(self, entry: int, address: int, nbytes: int, where: int | None) -> None:
        """Put the block where the recording has it, if that is free, so that one difference does not cause others."""
        self._blocks.pop(address, None)
        self._mended += 1
        if self._mended > _MENDED or not 0 < nbytes < _MOST_BYTES:
            return
        table = self._table()
        there = _free_at(table, address)
        ours = None if where is None else _free_at(table, where)
        if ours is not None and ours[0] == where:
            self._learn_end(entry, nbytes, *ours)
            if there is not None and there == (address, ours[1]):
                self._learn_age(address, where)
        if there is None:
            return
        start, _ = there
        filler = self._pool.take_at(start, address - start) if address > start else None
        if (block := self._pool.take_at(address, nbytes)) is not None:
            self._blocks[address] = block
        del filler

    def _learn_end(self, entry: int, nbytes: int, where: int, size: int) -> None:
        """What seemed to be free there was too small, if who lies before may reach further."""
        before = self._loose.get(where)
        if before is None or entry >= before.loose:
            return
        end = where + size - self._pool.rounded(nbytes) + _QUANTUM
        if end - before.address <= self._pool.rounded(before.requested) + LOOSE:
            self._learned.longer[before.address] = end - before.address
            self.news = True

    def _learn_age(self, older: int, younger: int) -> None:
        """The segment with the one address is older than that with the other, if both were there at the beginning."""
        pair = [next((at for at, end in self._old.items() if at <= there < end), None) for there in (older, younger)]
        old, young = pair
        if not self._by_arrival or old is None or young is None or old == young:
            return
        known = self._learned.older.setdefault(young, set())
        self.news |= old not in known
        known.add(old)


def _by_age(addresses: list[int], older: dict[int, set[int]]) -> list[int]:
    """Lower ones are older, unless something else is known."""
    there = set(addresses)
    missing = {address: older[address] & there for address in older}
    ready = [address for address in addresses if not missing.get(address)]
    heapify(ready)
    order = []
    while ready:
        order.append(address := heappop(ready))
        for younger, waits in missing.items():
            if address in waits:
                waits.remove(address)
                if not waits:
                    heappush(ready, younger)
    return order


def _carve(pool: Any, areas: Iterable[tuple[int, int]], rows: list[Block]) -> dict[int, object]:
    """Take those blocks out of the areas; gives them by address."""
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


def _free_at(table: NDArray[np.void], address: int) -> tuple[int, int] | None:
    """Address and size of the free block in which this address lies."""
    at = int(np.searchsorted(table["address"], address, "right")) - 1
    if at < 0 or table["state"][at] != State.FREE or address >= int(table["address"][at] + table["nbytes"][at]):
        return None
    return int(table["address"][at]), int(table["nbytes"][at])
