"""A history through the allocator again: is it the same one, and what would other settings have made of it?

`check` places every allocation anew and compares with the recording. `what_if` gives the same requests to an allocator
with other settings, or with other memory, over a simulated device.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.errors import Unsupported
from forebay.simulate import Device
from forebay.snapshot.model import Action, Snapshot, State
from forebay.snapshot.replay.initial_state import Block, start_of
from forebay.snapshot.replay.recorded_heaps import recorded_of
from forebay.snapshot.replay.recorded_settings import Recorded
from forebay.snapshot.replay.verify import Check, Difference, Progress, follow

__all__ = ["BEFORE", "Check", "Difference", "History", "Outcome", "check", "what_if"]

BEFORE = -1  # the "entry" of what was live when the history began
_CHUNK = 1 << 14
_SMALLEST_UNLIMITED, _LARGEST_UNLIMITED = 64 << 30, 4 << 40
_WAITED = 16  # beside the actions: GIVEN, of a block that had to wait for other queues
_MOST_BYTES = 1 << 60
_CAME = (Action.RESERVE, Action.MAP)
_WENT = (Action.RELEASE, Action.UNMAP)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a history under some settings; sizes in bytes.

    `refused` are the entries that found no memory, from 0 (BEFORE: what was live when it began). The replay ends at the
    first of them that is an allocation (`stopped`), as the program would not have come further; what failed when it was
    recorded, too, does not end it.
    """

    settings: str
    memory: int | None  # None: without a limit
    peak_allocated: int
    peak_reserved: int
    device_allocs: int
    device_frees: int
    refused: tuple[int, ...]
    stopped: bool
    complete: bool = True  # False: the time was over

    @property
    def ran_out(self) -> int | None:
        """The first entry that found no memory."""
        return self.refused[0] if self.refused else None


def check(snapshot: Snapshot, progress: Progress | None = None) -> Check:
    """Place every allocation of the history anew, from the state in which it began, and compare.

    Equal free blocks are ranked as the version that recorded it did, as far as the file tells; if not all agree, the
    other way is tried as well, and the better one counts. Unsupported for memory that came as heaps.
    """
    recorded = recorded_of(snapshot)
    if recorded.heaps:
        raise Unsupported(f"the memory of {snapshot.device} came as heaps: addresses are compared in segments only")
    start = start_of(snapshot, recorded)
    first = follow(snapshot, recorded, start, by_arrival=recorded.by_arrival, progress=progress)
    if first.equal:
        return first
    second = follow(snapshot, recorded, start, by_arrival=not recorded.by_arrival, progress=progress)
    return max(first, second, key=lambda found: found.placed)


def what_if(
    snapshot: Snapshot, settings: str | None = None, memory: int | None = None, progress: Progress | None = None
) -> Outcome:
    """The history under other settings (None: those of the recording) and with so much memory.

    Without `memory` it is the capacity of the snapshot's device; where that is not known, what the device had when it
    was full; else without a limit. What was live when the history began is allocated first. Raises ValueError for bad
    settings.
    """
    history = History(snapshot)
    return history.run(settings, history.memory if memory is None else memory, progress=progress)


class History:
    """A history made ready for several runs.

    `peak_allocated`, `peak_reserved`, `device_allocs` and `device_frees` are as recorded, `events` is the number of
    allocations and frees, `memory` what the device had (None where that is not known).
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.recorded = recorded = recorded_of(snapshot)
        self._trace = trace = snapshot.trace
        self.entries = len(trace)
        self._reserved = _reserved(snapshot)
        self.peak_reserved = int(self._reserved.max())
        self.peak_allocated = int(_allocated(snapshot, recorded).max())
        self.device_allocs = int(np.isin(trace["action"], _CAME).sum())
        self.device_frees = int(np.isin(trace["action"], _WENT).sum())
        self.memory = snapshot.capacity or self._when_full() or None
        self._start = start_of(snapshot, recorded).blocks
        self._columns = self._prepare()
        self.events = int(np.isin(trace["action"], (Action.TAKE, Action.GIVEN)).sum())

    def _when_full(self) -> int:
        """What was reserved and what was free, together, the last time memory ran out."""
        full = np.flatnonzero(self._trace["action"] == Action.OOM)
        return int(self._reserved[full[-1]]) + int(self._trace["address"][full[-1]]) if len(full) else 0

    def _prepare(self) -> list[list[int]]:
        """The columns of the entries that count: each one's number, action, address, size, queue and home."""
        trace = self._trace
        action, address = trace["action"], trace["address"]
        possible = (trace["nbytes"] > 0) & (trace["nbytes"] < _MOST_BYTES)
        asks = possible & np.isin(action, (Action.TAKE, Action.OOM))
        gives, given = action == Action.GIVE, action == Action.GIVEN
        at_once = gives[:-1] & given[1:] & (address[:-1] == address[1:])
        waits = gives & ~np.append(at_once, False)[: len(trace)]
        waited = given & ~np.insert(at_once, 0, False)[: len(trace)]
        kept = asks | given | waits
        kept[self._emptied()] = True
        code = np.where(waited, _WAITED, action)
        rows = np.flatnonzero(kept)
        columns = (rows, code[rows], *(trace[name][rows] for name in ("address", "nbytes", "queue", "home")))
        return [column.tolist() for column in columns]

    def _emptied(self) -> NDArray[np.intp]:
        """The last entries of each empty_cache(): segments that went without need."""
        if self.recorded.collects:  # the allocator gives some back by itself
            return np.zeros(0, np.intp)
        trace, before = self._trace, self._reserved
        first, last = _ends(np.isin(trace["action"], _WENT))
        if self.memory is None:
            return last
        following = trace[np.minimum(last + 1, len(trace) - 1)]
        wanted = np.where(np.isin(following["action"], (*_CAME, Action.OOM)), following["nbytes"], 0).astype(np.int64)
        return last[before[first] + wanted <= self.memory]

    def run(
        self,
        settings: str | None = None,
        memory: int | None = None,
        *,
        other_used: int = 0,
        limit: int | None = None,
        seconds: float | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """Under these settings (None: those of the recording) on a device with so much memory (None: enough).

        Others use `other_used` of it, and no more than `limit` may be reserved. It gives up after `seconds`, and the
        outcome is not `complete` then.
        """
        text = self.recorded.text if settings is None else settings
        unlimited = min(max(_SMALLEST_UNLIMITED, 8 * self.peak_reserved), _LARGEST_UNLIMITED)
        total = unlimited if memory is None else memory
        device = self.recorded.device(total, text, other_used)
        device.allocator.explains = False  # nobody reads it
        if limit is not None:
            device.set_memory_fraction(limit / total)
        run = _Run(device)
        run.begin(self._start)
        until = None if seconds is None else time.monotonic() + seconds
        rows = len(self._columns[0])
        done = 0
        while done < rows and not run.stopped and (until is None or time.monotonic() < until):
            run.rows(*(column[done : done + _CHUNK] for column in self._columns))
            done = min(done + _CHUNK, rows)
            if progress is not None:
                progress(done, rows)
        return Outcome(
            settings=text,
            memory=memory,
            peak_allocated=device.peak("allocated_bytes"),
            peak_reserved=device.peak("reserved_bytes"),
            device_allocs=device.allocator.num_device_alloc,
            device_frees=device.allocator.num_device_free,
            refused=tuple(run.refused),
            stopped=run.stopped,
            complete=done == rows or run.stopped,
        )


class _Run:
    """One allocator, and the blocks that it gave, by their recorded address."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._live: dict[int, object] = {}
        self._waiting: dict[int, object] = {}  # given back, while other queues are at work on them
        self._pools: dict[int, tuple[int, int]] = {}
        self.refused: list[int] = []
        self.stopped = False

    def begin(self, blocks: list[Block]) -> None:
        """What was there before."""
        try:
            for block in blocks:
                self._live[block.address] = self._allocate(block.requested, block.queue, block.home)
        except MemoryError:
            self._refuse(BEFORE)
        self._device.reset_accumulated_stats()

    def rows(self, *columns: list[int]) -> None:
        """A portion of the history."""
        live, free, allocate = self._live, self._live.pop, self._device.allocator.allocate
        rows = zip(*columns, strict=True)
        while not self.stopped:
            try:
                for entry, action, address, nbytes, queue, home in rows:
                    if action == 3:  # Action.GIVEN: to look the name up costs as much as the rest
                        free(address, None)
                    elif action == 1 and home == 0:  # Action.TAKE
                        live[address] = allocate(nbytes, queue)
                    else:
                        self._do(entry, action, address, nbytes, queue, home)
            except MemoryError:
                self._again(entry, address, nbytes, queue, home)
            else:
                return

    def _do(self, entry: int, action: int, address: int, nbytes: int, queue: int, home: int) -> None:
        if action == Action.TAKE:
            self._live[address] = self._allocate(nbytes, queue, home)
        elif action == Action.GIVE:
            self._waiting[address] = self._live.pop(address, None)
        elif action == _WAITED:
            self._waiting.pop(address, None)
        elif action == Action.OOM:
            try:
                self._allocate(nbytes, queue, home)
            except MemoryError:
                self.refused.append(entry)
        else:
            self._device.empty_cache()

    def _again(self, entry: int, address: int, nbytes: int, queue: int, home: int) -> None:
        """An allocator that is out of memory would have waited for other queues first."""
        self._waiting.clear()
        try:
            self._live[address] = self._allocate(nbytes, queue, home)
        except MemoryError:
            self._refuse(entry)

    def _refuse(self, entry: int) -> None:
        self.refused.append(entry)
        self.stopped = True

    def _allocate(self, nbytes: int, queue: int, home: int) -> object:
        if home == 0:
            return self._device.allocator.allocate(nbytes, queue)
        if home not in self._pools:
            self._pools[home] = self._device.new_pool()
        with self._device.use_pool(self._pools[home]):
            return self._device.allocator.allocate(nbytes, queue)


def _reserved(snapshot: Snapshot) -> NDArray[np.int64]:
    """Bytes reserved before each entry, and in the end."""
    trace = snapshot.trace
    sizes = trace["nbytes"].astype(np.int64)
    grown = np.where(np.isin(trace["action"], _CAME), sizes, 0) - np.where(np.isin(trace["action"], _WENT), sizes, 0)
    return _backwards(int(snapshot.segments["nbytes"].sum()), grown)


def _allocated(snapshot: Snapshot, recorded: Recorded) -> NDArray[np.int64]:
    """Bytes in blocks in use, the same way."""
    trace = snapshot.trace
    moved = np.isin(trace["action"], (Action.TAKE, Action.GIVE))
    sizes = np.zeros(len(trace), np.int64)
    sizes[moved] = recorded.rounded(trace["nbytes"][moved]).astype(np.int64)
    sizes[trace["action"] == Action.GIVE] *= -1
    live = snapshot.blocks["requested"][snapshot.blocks["state"] == State.LIVE]
    return _backwards(int(recorded.rounded(live).sum()), sizes)


def _backwards(final: int, changes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The end is known for sure, the beginning may be lost."""
    levels = np.full(len(changes) + 1, final, np.int64)
    levels[:-1] -= np.cumsum(changes[::-1])[::-1]
    return np.maximum(levels, 0)


def _ends(flags: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The first and the last of each run."""
    padded = np.concatenate([[False], flags, [False]]).astype(np.int8)
    steps = np.diff(padded)
    return np.flatnonzero(steps == 1), np.flatnonzero(steps == -1) - 1
