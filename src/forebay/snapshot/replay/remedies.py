"""Allocator settings that would have avoided an out-of-memory error or lowered the peak, each proved by a replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay._core import MAX_REQUEST_BYTES
from forebay.records.model import Action, Snapshot
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.replay.engine import History, Outcome
from forebay.snapshot.replay.recorded_heaps import recorded_settings_of
from forebay.snapshot.replay.recorded_settings import is_from_windows

__all__ = ["Fidelity", "Remedies", "Remedy", "available_memory", "find_remedies"]

_WORTHWHILE = 0.01  # of the peak of reserved bytes, by which a setting must lower it
_MAX_MEMORY = 1 << 52  # of a simulated device
_SEGMENT_ACTIONS = (Action.RESERVE, Action.RELEASE, Action.MAP, Action.UNMAP)


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Agreement of a replay with the recorded settings with the recording."""

    recorded: int  #: recorded segment events, which are segments reserved and released, pages mapped and unmapped
    replayed: int  #: those of the replay
    equal: int  #: number of events before the first one whose action or size differs
    same_errors: bool  #: true if the same requests ran out of memory
    recorded_peak: int  #: recorded peak of reserved memory, in bytes
    replayed_peak: int  #: that of the replay

    @property
    def exact(self) -> bool:
        """True if all segment events agree, and the same requests ran out of memory."""
        return self.recorded == self.replayed == self.equal and self.same_errors and not self.error

    @property
    def error(self) -> int:
        """Difference of the two peaks of reserved memory, in bytes."""
        return abs(self.replayed_peak - self.recorded_peak)


@dataclass(frozen=True, slots=True)
class Remedy:
    """The outcome of a replay with other settings."""

    environment: str  #: the variable that selects the settings, such as ``PYTORCH_ALLOC_CONF=expandable_segments:True``
    outcome: Outcome  #: the outcome
    #: True if no request ran out of memory that had been recorded to do so; without such a request, if the peak of
    #: reserved memory is lower than in the replay with the recorded settings by at least 1 % of it. In both cases by
    #: more than twice the error of that replay, if it does not reproduce the recorded peak.
    helps: bool


@dataclass(frozen=True, slots=True)
class Remedies:
    """Replays of one history under several settings."""

    memory: int | None  #: bytes that the replays could reserve; None if unlimited
    events: int  #: allocations and frees that were replayed
    allocations: int  #: allocations among them; without one, no other setting is tried
    baseline: Outcome  #: the outcome with the recorded settings
    fidelity: Fidelity  #: how exactly that replay reproduces the recording
    initial_blocks: int  #: number of blocks that were live before the history, with which the replays begin
    #: The outcomes with other settings, those that help first, by the peak of reserved memory.
    tried: tuple[Remedy, ...]

    @property
    def proved(self) -> bool:
        """True if the replay with the recorded settings ran out of memory as recorded, or did not if none was."""
        return self.fidelity.same_errors

    @property
    def helpful(self) -> tuple[Remedy, ...]:
        """The settings that help; empty if the replay does not reproduce the recorded errors."""
        return tuple(remedy for remedy in self.tried if remedy.helps) if self.proved else ()


def available_memory(snapshot: Snapshot) -> int | None:
    """Return the bytes that the program could reserve when memory ran out.

    Where the device had enough free memory for a new segment, a limit of the process was reached: its reserved bytes.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.

    Returns
    -------
    int or None
        Its reserved and the device's free bytes at the last out-of-memory event. Without such an event, the capacity;
        None if it is unknown.
    """
    rows = np.flatnonzero(snapshot.trace["action"] == Action.OOM)
    if not len(rows):
        return min(snapshot.capacity, _MAX_MEMORY) or None
    entry = snapshot.trace[rows[-1]]
    reserved, free = int(reconstruct(snapshot).reserved[rows[-1]]), int(entry["address"])
    nbytes = min(int(entry["nbytes"]), MAX_REQUEST_BYTES)
    limited = 0 < recorded_settings_of(snapshot).segment_size(nbytes) <= free
    return min(max(reserved if limited and reserved else reserved + free, 1), _MAX_MEMORY)


def find_remedies(
    snapshot: Snapshot, *, memory: int | None = None, progress: Callable[[int, int], None] | None = None
) -> Remedies:
    """Replay a history with its own and with other settings.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    memory : int, optional
        Bytes that the program could reserve; by default as `available_memory` returns it.
    progress : callable, optional
        Called as `progress(replays_done, replays_total)`.

    Raises
    ------
    Unsupported
        If the snapshot has too many private pools.
    """
    history = History(snapshot)
    memory = available_memory(snapshot) if memory is None else memory
    oom_rows = tuple(np.flatnonzero(snapshot.trace["action"] == Action.OOM).tolist())
    growable = not is_from_windows(snapshot)
    candidates = list(history.recorded.alternatives(growable=growable, limited=False)) if history.allocations else []
    total = len(candidates) + 2
    baseline, events = history.run_recorded(memory)
    fidelity = _fidelity(snapshot, history, baseline, oom_rows, events)
    tried = []
    needed = max(
        int(_WORTHWHILE * baseline.peak_reserved), 2 * fidelity.error
    )  # bytes, by which the peak must be lower
    for done, settings in enumerate(candidates, 2):
        if progress is not None:
            progress(done, total)
        outcome = history.run(settings, memory)
        most = baseline.peak_reserved - needed if not oom_rows or memory is None else memory - 2 * fidelity.error
        helps = not outcome.refused and (outcome.peak_reserved < most or (bool(oom_rows) and not fidelity.error))
        tried.append(Remedy(history.recorded.as_environment(settings), outcome, helps))
    tried.sort(key=lambda remedy: (not remedy.helps, len(remedy.outcome.refused), remedy.outcome.peak_reserved))
    return Remedies(
        memory, history.events, history.allocations, baseline, fidelity, history.initial_blocks, tuple(tried)
    )


def _fidelity(
    snapshot: Snapshot, history: History, baseline: Outcome, oom_rows: tuple[int, ...], replayed: NDArray[np.void]
) -> Fidelity:
    recorded = snapshot.trace[np.isin(snapshot.trace["action"], _SEGMENT_ACTIONS)]
    shorter = min(len(recorded), len(replayed))
    differs = (recorded["action"][:shorter] != replayed["action"][:shorter]) | (
        recorded["nbytes"][:shorter] != replayed["nbytes"][:shorter]
    )
    equal = int(np.argmax(differs)) if differs.any() else shorter
    same_errors = baseline.refused == oom_rows and not baseline.stopped
    return Fidelity(
        len(recorded), len(replayed), equal, same_errors, history.peak_reserved, baseline.peak_reserved
    )  # fmt: skip
