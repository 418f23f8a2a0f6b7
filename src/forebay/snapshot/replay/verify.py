"""Verification of a recorded history: the allocator places each allocation anew, and the addresses are compared.

Segments are reserved and released as recorded. The allocator only decides where in them a request is placed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay._base.byte_sizes import format_bytes
from forebay._core import MAX_REQUEST_BYTES, MAX_SMALL_BYTES
from forebay.records.model import BLOCK, Action, Snapshot, State
from forebay.simulate import Device
from forebay.snapshot.replay.address_space import Reservation
from forebay.snapshot.replay.initial_state import InitialState, LiveBlock
from forebay.snapshot.replay.placement import carve
from forebay.snapshot.replay.recorded_settings import RecordedSettings

__all__ = ["Check", "Difference", "Progress", "verify"]

Progress = Callable[[int, int], None]  # entries done, entries in total

_CAPACITY = 1 << 40  # of the simulated device, whose memory is never requested
_QUANTUM = 512  # block sizes are multiples of this
_CHUNK = 1 << 14
_MAX_PASSES = 20
_MAX_CORRECTIONS = 10_000  # differences after which correcting the allocator is pointless
_MAX_SEARCHED = 1 << 25  # rows of block tables that may be searched for corrections


@dataclass(frozen=True, slots=True)
class Difference:
    """An allocation that was placed at another address than recorded."""

    entry: int  # index of the history entry, from 0
    nbytes: int  # requested bytes
    queue: int  # the stream id
    recorded: int  # the recorded address
    placed: int | None  # the address in the replay; None if there was no free block for it

    def __str__(self) -> str:
        where = "not placed" if self.placed is None else f"placed at {self.placed:#x}"
        return (
            f"entry {self.entry:,}: {format_bytes(self.nbytes)} for stream {self.queue} {where}, "
            f"recorded at {self.recorded:#x}"
        )


@dataclass(frozen=True, slots=True)
class Check:
    """Result of `check`: how many allocations the replay placed as recorded."""

    placed: int  # allocations placed at their recorded address
    total: int  # allocations in the history
    # True if among equal free blocks the one in the oldest segment is chosen, as since PyTorch 2.10; False if the one
    # at the lowest address is chosen.
    by_arrival: bool
    first: Difference | None  # the first allocation that was placed at another address; None if there is none
    learned: int = 0  # facts about the initial state that were inferred from the recorded addresses; 0 by default

    @property
    def equal(self) -> bool:
        """True if all allocations were placed as recorded."""
        return self.placed == self.total


def verify(
    snapshot: Snapshot,
    recorded: RecordedSettings,
    initial: InitialState,
    *,
    by_arrival: bool,
    progress: Progress | None = None,
) -> Check:
    """Replay all entries from the initial state and compare the addresses.

    A file lacks two facts about the initial state: which of two segments is older, and the exact end of some blocks. A
    difference may reveal one of them; the replay is then repeated with it.
    """
    inferred = _InferredFacts()
    results: list[Check] = []
    has_new_facts = True
    while has_new_facts and len(results) < _MAX_PASSES and inferred.consistent():
        run = _Pass(snapshot, recorded, initial, by_arrival, inferred)
        results.append(run.replay(progress))
        has_new_facts = run.has_new_facts and not results[-1].equal
    return max(results, key=lambda check: check.placed)


@dataclass(slots=True)
class _InferredFacts:
    """Facts about the initial state that the recorded addresses reveal."""

    older: dict[int, set[int]] = field(default_factory=dict)  # for each segment, the segments that are older
    longer: dict[int, int] = field(default_factory=dict)  # for each block address, its size
    searched: int = 0  # rows of the block tables made so far, in all passes

    def count(self) -> int:
        return sum(map(len, self.older.values())) + len(self.longer)

    def consistent(self) -> bool:
        """Return True if the ages of segments are not circular."""
        try:
            TopologicalSorter(self.older).prepare()
        except CycleError:
            return False
        return True


class _Pass:
    """One replay of the history. `has_new_facts` is set when it inferred a new fact."""

    def __init__(
        self,
        snapshot: Snapshot,
        recorded: RecordedSettings,
        initial: InitialState,
        by_arrival: bool,
        inferred: _InferredFacts,
    ) -> None:
        self._trace = trace = snapshot.trace
        self._spaces, self._by_arrival, self._inferred = initial.spaces, by_arrival, inferred
        blocks = [row._replace(nbytes=inferred.longer.get(row.address, row.nbytes)) for row in initial.blocks]
        self._extensible = {row.address + row.nbytes: row for row in blocks if row.extensible_until}
        device = Device(_CAPACITY, "expandable_segments:True")  # so that blocks of any size can be placed
        self._allocator = device.allocator
        pools = np.union1d(snapshot.segments["pool"], trace["pool"])
        for pool in pools[pools != 0].tolist():
            self._allocator.create_pool(pool)
        self._blocks = self._place_initial(initial, blocks)
        device.apply_settings(f"expandable_segments:{recorded.expandable}" + (recorded.text and f",{recorded.text}"))
        reserves = np.flatnonzero(trace["action"] == Action.RESERVE)
        self._small = dict(zip(reserves.tolist(), recorded.are_small(reserves), strict=True))
        # Start and end of the initial segments that still exist.
        self._old = {row[0]: row[0] + row[1] for row in initial.segments}
        self._old |= {space.address: space.end for space in initial.spaces.first}
        self._expandable = recorded.expandable
        self._corrections = 0
        self._new_memory = 0  # address of memory added for the next allocation
        self.has_new_facts = False

    def replay(self, progress: Progress | None) -> Check:
        names = ("action", "address", "nbytes", "queue", "pool")
        placed = total = 0
        first, facts = None, self._inferred.count()
        allocate, blocks = self._allocator.try_allocate, self._blocks
        free = blocks.pop
        for begin in range(0, len(self._trace), _CHUNK):
            chunk = self._trace[begin : begin + _CHUNK]
            rows = zip(range(begin, begin + _CHUNK), *(chunk[name].tolist() for name in names), strict=False)
            for entry, action, address, nbytes, queue, pool in rows:
                if action == 3:  # free_completed; looking up the enum member would double the cost
                    free(address, None)
                elif action == 1:  # alloc
                    total += 1
                    if not 0 < nbytes < MAX_REQUEST_BYTES:
                        block = None
                    elif self._new_memory:
                        block = self._allocate_in_new_memory(nbytes)
                    else:
                        block = allocate(nbytes, queue, pool)
                        if block is None and self._expandable:
                            block = self._allocate_before_unmapped(nbytes, queue, pool)
                    where, blocks[address] = None if block is None else block.address, block
                    del block  # a reference would keep the block live
                    if where == address:
                        placed += 1
                        continue
                    first = first or Difference(entry, nbytes, queue, address, where)
                    self._correct(entry, address, nbytes, where)
                else:
                    self._apply_segment_entry(entry, action, address, nbytes, queue, pool)
            if progress is not None:
                progress(min(begin + _CHUNK, len(self._trace)), len(self._trace))
        return Check(placed, total, self._by_arrival, first, facts)

    def _apply_segment_entry(self, entry: int, action: int, address: int, nbytes: int, queue: int, pool: int) -> None:
        """Reserve, release, map or unmap as recorded."""
        allocator, self._new_memory = self._allocator, 0
        if action == Action.RESERVE:
            if self._adopt(address, nbytes, queue, self._small[entry], pool):
                self._new_memory = address
        elif action == Action.RELEASE:
            allocator.evict(address)
            self._old.pop(address, None)
        elif action == Action.MAP:
            if (space := self._spaces.opened.get(entry)) is not None:
                self._adopt_space(space)
            if allocator.begin_commit(address, nbytes):
                allocator.commit_done(address, 0)
                self._new_memory = address
        elif action == Action.UNMAP:
            if allocator.begin_decommit(address, nbytes):
                allocator.decommit_done(address)
            if (space := self._spaces.closed.get(entry)) is not None:
                allocator.evict_expandable(space.address)
                self._old.pop(space.address, None)

    def _allocate_in_new_memory(self, nbytes: int) -> Any:
        """Allocate in the memory added for this request, without another best-fit search."""
        address, self._new_memory = self._new_memory, 0
        block = self._allocator.allocate_at(address, nbytes)
        if block is None and self._may_search() and (merged := _free_at(self._table(), address)) is not None:
            block = self._allocator.allocate_at(merged[0], nbytes)  # new pages merge with the free block before them
        return block

    def _allocate_before_unmapped(self, nbytes: int, queue: int, pool: int) -> Any:
        """Allocate from the free block before unmapped pages, if it is large enough without them."""
        address, missing = self._allocator.choose_pages(nbytes, queue, pool)
        if missing:
            self._allocator.rollback(address)
            return None
        return self._allocator.allocate_at(address, nbytes) if address else None

    def _may_search(self) -> bool:
        return self._inferred.searched < _MAX_SEARCHED

    def _table(self) -> NDArray[np.void]:
        table = np.frombuffer(self._allocator.tables(trace=False)[1], BLOCK)
        self._inferred.searched += len(table) + len(self._old)
        return table

    def _adopt(self, address: int, nbytes: int, queue: int, small: bool, pool: int) -> bool:
        try:
            self._allocator.adopt(address, nbytes, queue, small, None if self._by_arrival else address, pool)
        except ValueError:  # overlaps another segment: the resulting differences are reported
            return False
        return True

    def _adopt_space(self, space: Reservation) -> None:
        with suppress(ValueError):
            self._allocator.adopt_expandable(space.address, space.end - space.address, self._spaces.page, *space.owner)

    def _place_initial(self, initial: InitialState, blocks: list[LiveBlock]) -> dict[int, object]:
        """Place the initial segments and blocks. Returns the blocks by address."""
        areas = [(address, nbytes, address) for address, nbytes in initial.spaces.pages]
        segments = {row[0]: row for row in initial.segments}
        spaces = {space.address: space for space in initial.spaces.first}
        for address in _by_age(sorted([*segments, *spaces]), self._inferred.older):
            if (space := spaces.get(address)) is not None:
                self._adopt_space(space)
            elif self._adopt(*segments[address]):
                areas.append((*segments[address][:2], address))
        for address, nbytes in initial.spaces.pages:
            if self._allocator.begin_commit(address, nbytes):
                self._allocator.commit_done(address, 0)
        return carve(self._allocator, sorted(areas), blocks)

    def _correct(self, entry: int, address: int, nbytes: int, where: int | None) -> None:
        """Move the block to its recorded address, if that is free, so that one difference does not cause others."""
        self._blocks.pop(address, None)
        self._corrections += 1
        if self._corrections > _MAX_CORRECTIONS or not 0 < nbytes < MAX_REQUEST_BYTES or not self._may_search():
            return
        table = self._table()
        recorded = _free_at(table, address)
        chosen = None if where is None else _free_at(table, where)
        if chosen is not None and chosen[0] == where:
            self._infer_end(entry, nbytes, *chosen)
            if recorded is not None and recorded == (address, chosen[1]):
                self._infer_age(address, where)
        if recorded is None:
            return
        start, _ = recorded
        filler = self._allocator.allocate_at(start, address - start) if address > start else None
        if (block := self._allocator.allocate_at(address, nbytes)) is not None:
            self._blocks[address] = block
        del filler

    def _infer_end(self, entry: int, nbytes: int, where: int, size: int) -> None:
        """Infer that the block before `where` is longer, as the free block there was too small for the request."""
        before = self._extensible.get(where)
        if before is None or entry >= before.extensible_until:
            return
        end = where + size - self._allocator.block_size(nbytes) + _QUANTUM
        if end - before.address <= self._allocator.block_size(before.requested) + MAX_SMALL_BYTES:
            self._inferred.longer[before.address] = end - before.address
            self.has_new_facts = True

    def _infer_age(self, older_address: int, younger_address: int) -> None:
        """Infer that the segment of the first address is older, if both segments existed at the beginning."""
        older, younger = (
            next((start for start, end in self._old.items() if start <= address < end), None)
            for address in (older_address, younger_address)
        )
        if not self._by_arrival or older is None or younger is None or older == younger:
            return
        known = self._inferred.older.setdefault(younger, set())
        self.has_new_facts |= older not in known
        known.add(older)


def _by_age(addresses: list[int], older: dict[int, set[int]]) -> list[int]:
    """Sort segments from old to young: by address, unless `older` requires another order."""
    existing = set(addresses)
    missing = {address: len(older[address] & existing) for address in older}
    younger = defaultdict[int, list[int]](list)
    for address, predecessors in older.items():
        for predecessor in predecessors:
            younger[predecessor].append(address)
    ready = [address for address in addresses if not missing.get(address)]
    heapify(ready)
    order = []
    while ready:
        order.append(address := heappop(ready))
        for following in younger[address]:
            missing[following] -= 1
            if not missing[following] and following in existing:
                heappush(ready, following)
    return order


def _free_at(table: NDArray[np.void], address: int) -> tuple[int, int] | None:
    """Return address and size of the free block that contains the address, or None."""
    at = int(np.searchsorted(table["address"], address, "right")) - 1
    if at < 0 or table["state"][at] != State.FREE or address >= int(table["address"][at] + table["nbytes"][at]):
        return None
    return int(table["address"][at]), int(table["nbytes"][at])
