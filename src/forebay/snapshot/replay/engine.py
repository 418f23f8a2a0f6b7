"""Replay of a recorded history: verification (`check`) and simulation with other settings (`what_if`).

`check` places every allocation anew and compares the addresses with the recording. `what_if` repeats the requests on a
simulated device with other allocator settings or another memory capacity.

# Note [Start of a replay]
A history usually begins in the middle of a program, whose cache and gaps at that time decide where its first requests
are placed. Every replay begins with that state, also one with other settings: what the program had reserved before, it
had reserved with its own settings, so a setting is only credited with what it changes afterwards. Rejected: to allocate
the live blocks anew, as the cached memory is missing then; a replay of a history of one entry reserved half of what the
program had, and settings seemed to help that change nothing. This remains where the recorded state does not fit.
Test: tests/snapshot/replay/test_placement.py::test_replay_begins_with_the_recorded_state
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forebay._core import MAX_REQUEST_BYTES
from forebay.errors import Unsupported
from forebay.records.model import ENTRY, Action, Snapshot, State
from forebay.simulate import Device
from forebay.snapshot.replay.initial_state import InitialState, LiveBlock, reconstruct_initial_state
from forebay.snapshot.replay.placement import reserved_bytes
from forebay.snapshot.replay.recorded_heaps import recorded_settings_of
from forebay.snapshot.replay.recorded_settings import RecordedSettings
from forebay.snapshot.replay.requests import BEFORE, DEFERRED_FREE, RequestRows, Requests
from forebay.snapshot.replay.verify import Check, Difference, Progress, verify

__all__ = ["BEFORE", "Check", "Difference", "History", "Outcome", "check", "what_if"]

_CHUNK = 1 << 14
_MIN_UNLIMITED, _MAX_UNLIMITED = 64 << 30, 4 << 40
_GROW = (Action.RESERVE, Action.MAP)
_SHRINK = (Action.RELEASE, Action.UNMAP)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of replaying a history. Sizes are in bytes."""

    settings: str  #: the allocator settings
    memory: int | None  #: memory of the simulated device; None if unlimited
    peak_allocated: int  #: maximum of the bytes in live blocks
    peak_reserved: int  #: maximum of the bytes in segments
    device_allocs: int  #: calls that allocated device memory
    device_frees: int  #: calls that freed device memory
    #: Indices of the entries that ran out of memory, from 0; -1 (`BEFORE`) stands for the blocks that were live before
    #: the history began.
    refused: tuple[int, ...]
    #: True if the replay ended at an allocation that ran out of memory, where the program could not have continued.
    #: Requests that also failed in the recording do not end the replay.
    stopped: bool
    complete: bool = True  #: false if the time limit ended the replay; True by default
    #: True if the replay began with the recorded segments, blocks and gaps. False if the device has less memory than
    #: was reserved then, or allocates in heaps: then the live blocks were allocated anew.
    from_recorded_state: bool = True

    @property
    def ran_out(self) -> int | None:
        """The first entry that ran out of memory; None if there is none."""
        return self.refused[0] if self.refused else None


def check(snapshot: Snapshot, progress: Progress | None = None) -> Check:
    """Place every allocation of a history anew and compare the addresses with the recording.

    The replay begins with the state in which the history began. Equal free blocks are ranked by the rule of the PyTorch
    version that made the recording, as far as the file shows it. If an address differs, the other rule is tried too,
    and the better result is returned.

    Parameters
    ----------
    snapshot : Snapshot
        The recording.
    progress : callable, optional
        Called as `progress(entries_done, entries_total)`.

    Raises
    ------
    Unsupported
        If the device allocates in heaps, as MPS devices do.

    Examples
    --------
    >>> from forebay import simulate
    >>> from forebay.snapshot.formats import torch_pickle
    >>> gpu = simulate.Device(1 << 30)
    >>> gpu.record_history()
    >>> gpu.free(gpu.allocate(1 << 20))
    >>> (snapshot,) = torch_pickle.snapshots(gpu.snapshot())
    >>> check(snapshot).equal
    True
    """
    recorded = recorded_settings_of(snapshot)
    if recorded.heaps:
        raise Unsupported(f"cannot check {snapshot.device}: it allocates in heaps, and only segments can be compared")
    initial = reconstruct_initial_state(snapshot, recorded)
    first = verify(snapshot, recorded, initial, by_arrival=recorded.by_arrival, progress=progress)
    if first.equal:
        return first
    second = verify(snapshot, recorded, initial, by_arrival=not recorded.by_arrival, progress=progress)
    return max(first, second, key=lambda result: result.placed)


def what_if(
    snapshot: Snapshot, settings: str | None = None, memory: int | None = None, progress: Progress | None = None
) -> Outcome:
    """Replay a history with other allocator settings or another memory capacity.

    The replay begins with the segments, blocks and gaps with which the history began; on a device that has less memory
    than was reserved then, with the live blocks alone. See Note [Start of a replay].

    Parameters
    ----------
    snapshot : Snapshot
        The recording.
    settings : str, optional
        Settings in the format of FOREBAY_ALLOC_CONF; those of the recording by default.
    memory : int, optional
        Memory of the simulated device in bytes. By default the capacity of the recorded device; if that is unknown, the
        capacity inferred from the last out-of-memory event; without such an event unlimited.
    progress : callable, optional
        Called as `progress(entries_done, entries_total)`.

    Raises
    ------
    ValueError
        If the settings are invalid.
    """
    history = History(snapshot)
    return history.run(settings, history.memory if memory is None else memory, progress=progress)


class History:
    """A history prepared for several replays.

    Parameters
    ----------
    snapshot : Snapshot
        The recording.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        recorded = recorded_settings_of(snapshot)
        self.recorded: RecordedSettings = recorded  #: the settings of the recording
        self._trace = trace = snapshot.trace
        self.entries: int = len(trace)  #: number of history entries
        self._reserved = _reserved(snapshot)
        self.peak_reserved: int = int(self._reserved.max())  #: recorded maximum in bytes
        self.peak_allocated: int = int(_allocated(snapshot, recorded.rounded).max())  #: recorded maximum in bytes
        #: Recorded maximum of the bytes that the program requested for live blocks, without rounding.
        self.peak_requested: int = int(_allocated(snapshot, lambda sizes: sizes).max())
        self.device_allocs: int = int(np.isin(trace["action"], _GROW).sum())  #: recorded calls that allocated
        self.device_frees: int = int(np.isin(trace["action"], _SHRINK).sum())  #: recorded calls that freed it
        #: Memory of the recorded device in bytes; None if unknown.
        self.memory: int | None = snapshot.capacity or self._memory_at_last_oom() or None
        #: The segments and blocks with which the history began.
        self.initial_state: InitialState = reconstruct_initial_state(snapshot, recorded)
        self.initial_blocks: int = len(self.initial_state.blocks)  #: blocks that were live before the history
        #: The entries to replay: index, action, address, size, queue and private pool, one array each.
        self.columns: list[NDArray[np.integer]] = self._prepare()
        self.allocations: int = int((trace["action"] == Action.ALLOC).sum())  #: number of allocations
        #: Number of allocations and frees.
        self.events: int = int(np.isin(trace["action"], (Action.ALLOC, Action.FREE_COMPLETED)).sum())

    @cached_property
    def rows(self) -> RequestRows:
        """The entries to replay, in the form of `Requests`."""
        return RequestRows.of(self.columns)

    def replaced(self, columns: list[NDArray[np.integer]], blocks: list[LiveBlock] | None = None) -> History:
        """Return a history that differs in what is replayed.

        Parameters
        ----------
        columns : list of numpy.ndarray
            The entries to replay, as in `columns`.
        blocks : list of LiveBlock, optional
            The blocks that were live before the history; the same by default.
        """
        other = copy(self)
        other.columns = columns
        vars(other).pop("rows", None)
        if blocks is not None:
            other.initial_state = replace(self.initial_state, blocks=blocks)
        return other

    def _memory_at_last_oom(self) -> int:
        """Return reserved plus free bytes at the last out-of-memory event; 0 if there was none."""
        oom_rows = np.flatnonzero(self._trace["action"] == Action.OOM)
        return int(self._reserved[oom_rows[-1]]) + int(self._trace["address"][oom_rows[-1]]) if len(oom_rows) else 0

    def _prepare(self) -> list[NDArray[np.integer]]:
        """Return the columns of the entries to replay: index, action, address, size, queue and private pool id."""
        trace = self._trace
        action, address = trace["action"], trace["address"]
        possible = (trace["nbytes"] > 0) & (trace["nbytes"] < MAX_REQUEST_BYTES)
        requests = possible & np.isin(action, (Action.ALLOC, Action.OOM))
        free_requested, free_completed = action == Action.FREE_REQUESTED, action == Action.FREE_COMPLETED
        immediate = free_requested[:-1] & free_completed[1:] & (address[:-1] == address[1:])
        deferred_request = free_requested & ~np.append(immediate, False)[: len(trace)]
        deferred_completion = free_completed & ~np.insert(immediate, 0, False)[: len(trace)]
        kept = requests | free_completed | deferred_request
        kept[self._empty_cache_rows()] = True
        code = np.where(deferred_completion, DEFERRED_FREE, action)
        rows = np.flatnonzero(kept)
        return [rows, code[rows], *(trace[name][rows] for name in ("address", "nbytes", "queue", "pool"))]

    def _empty_cache_rows(self) -> NDArray[np.intp]:
        """Return the last entry of each empty_cache(): releases that no request required."""
        if self.recorded.collects_garbage:  # cannot be distinguished from garbage collection
            return np.zeros(0, np.intp)
        trace, before = self._trace, self._reserved
        first, last = _ends(np.isin(trace["action"], _SHRINK))
        if self.memory is None:
            return last
        following = trace[np.minimum(last + 1, len(trace) - 1)]
        wanted = np.where(np.isin(following["action"], (*_GROW, Action.OOM)), following["nbytes"], 0).astype(np.int64)
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
        """Replay the history on a simulated device.

        Parameters
        ----------
        settings : str, optional
            Settings in the format of FOREBAY_ALLOC_CONF; those of the recording by default.
        memory : int, optional
            Memory of the device in bytes; unlimited by default.
        other_used : int, optional
            Bytes of it that other processes use; 0 by default.
        limit : int, optional
            Maximum of reserved bytes; `memory` by default.
        seconds : float, optional
            Time limit, after which the outcome is not `complete`; unlimited by default.
        progress : callable, optional
            Called as `progress(entries_done, entries_total)`.

        Raises
        ------
        ValueError
            If the settings are invalid.
        """
        return self._run(settings, memory, other_used, limit, seconds, progress, records=False)[0]

    def run_recorded(self, memory: int | None = None) -> tuple[Outcome, NDArray[np.void]]:
        """Replay the history with the recorded settings.

        Parameters
        ----------
        memory : int, optional
            Memory of the device in bytes; unlimited by default.

        Returns
        -------
        outcome : Outcome
            As `run` returns it.
        events : numpy.ndarray
            Rows of dtype `ENTRY`: segments that were reserved and released, pages that were mapped and unmapped.
        """
        return self._run(None, memory, 0, None, None, None, records=True)

    def _run(
        self, settings: str | None, memory: int | None, other_used: int, limit: int | None, seconds: float | None,
        progress: Progress | None, *, records: bool,
    ) -> tuple[Outcome, NDArray[np.void]]:  # fmt: skip
        text = self.recorded.text if settings is None else settings
        total = self._total(memory)
        available = total - other_used if limit is None else min(limit, total - other_used)
        device, requests, placed = self._start(total, text, other_used, available)
        if limit is not None:
            device.set_memory_fraction(limit / total)
        if not placed:
            requests.allocate_initial(self.initial_state.blocks)
        if records:
            device.record_history(context=None, skip_actions=("alloc", "free_requested", "free_completed", "oom"))
        complete = self._replay(requests, seconds, progress)
        events = np.frombuffer(device.allocator.tables()[2] if records else b"", ENTRY)
        outcome = Outcome(
            settings=text,
            memory=memory,
            peak_allocated=device.peak("allocated_bytes"),
            peak_reserved=device.peak("reserved_bytes"),
            device_allocs=device.allocator.num_device_alloc,
            device_frees=device.allocator.num_device_free,
            refused=tuple(requests.refused),
            stopped=requests.stopped,
            complete=complete,
            from_recorded_state=placed,
        )
        return outcome, events

    def device(self, memory: int | None = None, settings: str | None = None, other_used: int = 0) -> Device:
        """Return a simulated device like the recorded one.

        Parameters
        ----------
        memory : int, optional
            Memory of the device in bytes; unlimited by default.
        settings : str, optional
            Settings in the format of FOREBAY_ALLOC_CONF; those of the recording by default.
        other_used : int, optional
            Bytes of it that other processes use; 0 by default.

        Raises
        ------
        ValueError
            If the settings are invalid.
        """
        text = self.recorded.text if settings is None else settings
        device = self.recorded.device(self._total(memory), text, other_used)
        device.allocator.explains_oom = False  # the error texts are not used
        return device

    def _start(self, total: int, settings: str, other_used: int, available: int) -> tuple[Device, Requests, bool]:
        """Return a device, the requests to it, and whether it is in the state in which the history began."""
        device = self.device(total, settings, other_used)
        if self.recorded.heaps or reserved_bytes(self.initial_state) > available:
            return device, Requests(device, self.rows), False
        placed = self.device(total, "expandable_segments:True", other_used)  # so that blocks of any size can be placed
        requests = Requests(placed, self.rows)
        try:
            requests.place_initial(self.initial_state)
        except (ValueError, MemoryError):  # sizes that no allocator reserves, in a file that contradicts itself
            return device, Requests(device, self.rows), False
        placed.apply_settings("expandable_segments:False" + (settings and f",{settings}"))
        return placed, requests, True

    def _total(self, memory: int | None) -> int:
        return min(max(_MIN_UNLIMITED, 8 * self.peak_reserved), _MAX_UNLIMITED) if memory is None else memory

    def _replay(self, requests: Requests, seconds: float | None = None, progress: Progress | None = None) -> bool:
        """Replay all entries. Return False if the time limit ended the replay."""
        deadline = None if seconds is None else time.monotonic() + seconds
        rows = len(self.rows)
        done = 0
        while done < rows and not requests.stopped and (deadline is None or time.monotonic() < deadline):
            requests.replay(done, min(done + _CHUNK, rows))
            done = min(done + _CHUNK, rows)
            if progress is not None:
                progress(done, rows)
        return done == rows or requests.stopped


def _reserved(snapshot: Snapshot) -> NDArray[np.int64]:
    """Return the reserved bytes before each entry and at the end."""
    trace = snapshot.trace
    sizes = trace["nbytes"].astype(np.int64)
    growth = np.where(np.isin(trace["action"], _GROW), sizes, 0) - np.where(np.isin(trace["action"], _SHRINK), sizes, 0)
    return _levels(int(snapshot.segments["nbytes"].sum()), growth)


def _allocated(snapshot: Snapshot, size_of: Callable[[NDArray[np.uint64]], NDArray[np.uint64]]) -> NDArray[np.int64]:
    """Return the bytes in live blocks, whose sizes follow from the requests, before each entry and at the end."""
    trace = snapshot.trace
    moved = np.isin(trace["action"], (Action.ALLOC, Action.FREE_REQUESTED))
    sizes = np.zeros(len(trace), np.int64)
    sizes[moved] = size_of(trace["nbytes"][moved]).astype(np.int64)
    sizes[trace["action"] == Action.FREE_REQUESTED] *= -1
    live = snapshot.blocks["requested"][snapshot.blocks["state"] == State.LIVE]
    return _levels(int(size_of(live).sum()), sizes)


def _levels(final: int, changes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum the changes backwards from the final level, which is exact; the oldest entries may be missing."""
    levels = np.full(len(changes) + 1, final, np.int64)
    levels[:-1] -= np.cumsum(changes[::-1])[::-1]
    return np.maximum(levels, 0)


def _ends(flags: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the first and the last index of each run of True."""
    padded = np.concatenate([[False], flags, [False]]).astype(np.int8)
    steps = np.diff(padded)
    return np.flatnonzero(steps == 1), np.flatnonzero(steps == -1) - 1
