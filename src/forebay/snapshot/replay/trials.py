"""Trials of allocator settings: replays of the same histories, in this process or in workers of any executor.

The histories are sent once: a temporary file that each worker reads at its first trial, or, for Dask, data that the
scheduler copies to each worker. A trial itself is only a text.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from forebay._base.temporary_folders import temporary_folder
from forebay.records.model import FRAME, STACK, Snapshot
from forebay.snapshot.formats import native
from forebay.snapshot.formats.external_annotations import ANNOTATIONS
from forebay.snapshot.formats.known_notes import ROW_NOTES
from forebay.snapshot.replay.engine import History, Outcome
from forebay.snapshot.replay.lower_bounds import Bounds, find_bounds
from forebay.snapshot.replay.remedies import available_memory

__all__ = ["Replays", "RunTrials", "Trial", "shared_with"]

_NO_STACKS: dict[str, Any] = {"stacks": np.zeros(1, STACK), "frames": np.zeros(0, FRAME), "strings": (), "labels": ()}


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcomes of replaying histories with the same settings."""

    settings: str  # the allocator settings
    environment: str  # the variable that selects them, such as "PYTORCH_ALLOC_CONF=expandable_segments:True"
    outcomes: tuple[Outcome, ...]  # one for each history

    @property
    def failures(self) -> int:
        """Number of requests that ran out of memory."""
        return sum(len(outcome.refused) for outcome in self.outcomes)

    @property
    def stopped(self) -> int:
        """Number of histories that ended at a request that ran out of memory."""
        return sum(outcome.stopped for outcome in self.outcomes)

    @property
    def peak_reserved(self) -> int:
        """Highest peak of reserved bytes of all histories."""
        return max((outcome.peak_reserved for outcome in self.outcomes), default=0)

    @property
    def device_calls(self) -> int:
        """Calls that allocated or freed device memory."""
        return sum(outcome.device_allocs + outcome.device_frees for outcome in self.outcomes)

    @property
    def rank(self) -> tuple[int, int, int, int, int]:
        """The order of trials, best first: histories that ended, failures, peak of reserved memory, device calls."""
        total = sum(outcome.peak_reserved for outcome in self.outcomes)
        return self.stopped, self.failures, self.peak_reserved, total, self.device_calls


class Replays:
    """Histories that are ready for replays.

    `capacity` is what each program could reserve, in bytes; by default as `available_memory` returns it.
    """

    def __init__(self, snapshots: Iterable[Snapshot], capacity: int | None = None) -> None:
        self._snapshots = tuple(snapshots)
        self._capacity = capacity
        self.memory: tuple[int | None, ...] = tuple(capacity or available_memory(each) for each in self._snapshots)

    @cached_property
    def histories(self) -> tuple[History, ...]:
        """The prepared histories."""
        return tuple(map(History, self._snapshots))

    def run(self, settings: str | None) -> Trial:
        """Replay all histories; None stands for the recorded settings. ValueError if the settings are invalid."""
        pairs = zip(self.histories, self.memory, strict=True)
        outcomes = tuple(history.run(settings, memory) for history, memory in pairs)
        recorded = self.histories[0].recorded
        text = recorded.text if settings is None else settings
        return Trial(text, recorded.as_environment(text), outcomes)

    def as_recorded(self, recorded: Trial) -> tuple[Outcome, ...]:
        """Return the outcomes of replays with the recorded settings and memory.

        These are those of the trial with the recorded settings, unless it had another capacity.
        """
        if self._capacity is None:
            return recorded.outcomes
        pairs = zip(self.histories, self._snapshots, strict=True)
        return tuple(history.run(None, available_memory(snapshot)) for history, snapshot in pairs)

    def bounds(self) -> tuple[Bounds, ...]:
        """Return the bounds of the memory that each history needs."""
        return tuple(map(find_bounds, self._snapshots, self.histories))

    def without_stacks(self) -> tuple[Snapshot, ...]:
        """Return the snapshots without what a replay does not need."""
        return tuple(_without_stacks(each) for each in self._snapshots)


def _without_stacks(snapshot: Snapshot) -> Snapshot:
    tables: dict[str, Any] = {name: getattr(snapshot, name).copy() for name in ("segments", "blocks", "trace")}
    for table in tables.values():
        table["stack"] = 0
    tables["trace"]["note"] = 0
    return replace(snapshot, **tables, **_NO_STACKS, notes=_without_rows(snapshot.notes), stats={})


class _Shared(NamedTuple):
    """Histories that workers load: from files, or from a value that the executor has copied to them."""

    token: str
    folder: str
    memory: tuple[int | None, ...]


class _Loaded:
    """The histories that this worker has loaded last, so that only its first trial loads them."""

    lock = threading.Lock()
    token = ""
    replays: Replays | None = None


def _run_shared(shared: _Shared, settings: str | None, snapshots: Sequence[Snapshot] | None = None) -> Trial:
    """Run one trial in a worker."""
    with _Loaded.lock:
        if _Loaded.token != shared.token or _Loaded.replays is None:
            if snapshots is None:
                snapshots = [native.read(path) for path in sorted(Path(shared.folder).glob("*.forebay"))]
            replays = Replays(())
            replays._snapshots, replays.memory = tuple(snapshots), shared.memory  # noqa: SLF001 - its own class
            _ = replays.histories
            _Loaded.token, _Loaded.replays = shared.token, replays
        replays = _Loaded.replays
    return replays.run(settings)


RunTrials = Callable[[Sequence[str | None]], Iterator[tuple[int, Trial]]]


@contextmanager
def shared_with(executor: Executor | None, replays: Replays) -> Iterator[RunTrials]:
    """Context manager for a function that runs trials and yields each with its number, in the order of completion.

    Without an executor, they run in this process.
    """
    if executor is None:
        yield lambda settings: ((number, replays.run(text)) for number, text in enumerate(settings))
        return
    token = uuid4().hex
    client: Any = getattr(executor, "_client", None)  # of the executor that distributed.Client.get_executor() returns
    if hasattr(client, "scatter"):
        shared = _Shared(token, "", replays.memory)
        # Not named by its content: a release of the same histories by an earlier call could delete it.
        (value,) = client.scatter([replays.without_stacks()], broadcast=True, hash=False)
        yield lambda settings: _completed([executor.submit(_run_shared, shared, text, value) for text in settings])
        return
    with temporary_folder("forebay-tune-") as folder:
        for number, snapshot in enumerate(replays.without_stacks()):
            native.write(snapshot, folder / f"{number:06}.forebay")
        shared = _Shared(token, str(folder), replays.memory)
        yield lambda settings: _completed([executor.submit(_run_shared, shared, text) for text in settings])


def _completed(futures: list[Future[Trial]]) -> Iterator[tuple[int, Trial]]:
    numbers = {future: number for number, future in enumerate(futures)}
    try:
        for future in as_completed(futures):
            yield numbers[future], future.result()
    finally:
        for future in futures:
            future.cancel()


def _without_rows(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the notes that a replay needs: annotations may be as long as the history, and go to other processes."""
    return {name: value for name, value in notes.items() if name not in (ANNOTATIONS, *ROW_NOTES)}
