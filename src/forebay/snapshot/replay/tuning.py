"""Choice of allocator settings for recorded histories: replays under a grid of settings, or a search over them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product

from forebay.records.model import Snapshot
from forebay.snapshot.replay.lower_bounds import Bounds, Packing
from forebay.snapshot.replay.recorded_heaps import recorded_settings_of
from forebay.snapshot.replay.recorded_settings import is_from_windows
from forebay.snapshot.replay.trials import Replays, RunTrials, Trial, shared_with

__all__ = ["AXES", "Trial", "Tuning", "default_settings", "grid", "process_executor", "search", "tune"]

# The values that a search tries for each setting; "" leaves it out.
AXES: Mapping[str, tuple[str, ...]] = {
    "expandable_segments": ("", "True"),
    "max_split_size_mb": ("", "32", "64", "128", "256", "512", "1024"),
    "roundup_power2_divisions": ("", "2", "4", "8"),
}
_DEFAULT = (
    "",
    "expandable_segments:True",
    *(f"max_split_size_mb:{size}" for size in (32, 64, 128, 256, 512)),
    *(f"roundup_power2_divisions:{number}" for number in (2, 4, 8)),
    "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_segments:True,max_split_size_mb:128",
)

_Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Tuning:
    """Trials of settings, ranked."""

    recorded: Trial  #: the trial of the recorded settings, for comparison
    #: The trials of other settings, those with the fewest failures first, then those with the lowest peak of reserved
    #: memory, then those with the fewest device calls.
    trials: tuple[Trial, ...]
    memory: tuple[int | None, ...]  #: bytes that each history could reserve; None if unlimited
    events: int  #: allocations and frees of one trial
    bounds: tuple[Bounds, ...]  #: bounds of each history
    #: Largest difference of the peak of reserved bytes between a recording and its replay with the recorded settings.
    error: int

    @property
    def least(self) -> int:
        """Bytes that every setting must reserve in one of the histories, see `Bounds.least`."""
        return max(each.least for each in self.bounds)

    @property
    def packing(self) -> Packing:
        """The largest of the packings of the histories, all lifetimes known in advance."""
        return max((each.packing for each in self.bounds), key=lambda packing: packing.nbytes)

    @property
    def missing(self) -> int:
        """Bytes that one of the histories needs beyond its memory with every setting; 0 if there is none."""
        pairs = zip(self.bounds, self.memory, strict=True)
        return max(0, *(each.needed - memory for each, memory in pairs if memory is not None), 0)

    @property
    def best(self) -> Trial:
        """The best of all trials; the recorded settings if no others are better.

        Where requests run out of memory with the recorded settings, settings with which fewer do are better. Otherwise
        those that reserve less, by more than twice the error, or call the device less often at the same peak.
        """
        recorded = self.recorded
        best = min((recorded, *self.trials), key=lambda trial: trial.rank)
        if recorded.failures:
            return best if (best.stopped, best.failures) < (recorded.stopped, recorded.failures) else recorded
        saved = recorded.peak_reserved - best.peak_reserved
        return best if saved > 2 * self.error or (saved == 0 and not self.error) else recorded


def grid(values: Mapping[str, Sequence[str]], base: str = "") -> list[str]:
    """Return the settings with every combination of values, in the format of PYTORCH_ALLOC_CONF.

    Parameters
    ----------
    values : Mapping of str to sequence of str
        The values of each setting; "" leaves it out.
    base : str, default ""
        Settings that are kept, unless `values` has them.

    Examples
    --------
    >>> grid({"expandable_segments": ["", "True"], "max_split_size_mb": ["64"]}, "max_split_size_mb:20")
    ['max_split_size_mb:64', 'expandable_segments:True,max_split_size_mb:64']
    """
    kept = [text for text in _split(base) if text.partition(":")[0].strip() not in values]
    rows = product(*([f"{key}:{value}" if value else "" for value in choices] for key, choices in values.items()))
    return list(dict.fromkeys(",".join(filter(None, [*kept, *row])) for row in rows))


def default_settings(snapshot: Snapshot) -> list[str]:
    """Return the settings that `tune` tries by default: 12 for segments, lower and higher watermarks for heaps.

    Those with expandable segments are left out if the recording is from Windows, where PyTorch has none.

    Parameters
    ----------
    snapshot : Snapshot
        The recording.
    """
    recorded = recorded_settings_of(snapshot)
    if recorded.heaps:
        return list(recorded.alternatives(growable=True, limited=True))
    windows = is_from_windows(snapshot)
    return [text for text in _DEFAULT if not (windows and "expandable_segments" in text)]


def process_executor(trials: int, jobs: int | None = None) -> ProcessPoolExecutor:
    """Return an executor with one process for each processor.

    Parameters
    ----------
    trials : int
        Number of trials; no more processes are started.
    jobs : int, optional
        Number of processes; by default that of the processors that this process may use.

    Returns
    -------
    ProcessPoolExecutor
        The executor. Processes are spawned, not forked: this process may have threads.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    available = jobs or (len(affinity(0)) if affinity is not None else os.cpu_count()) or 1
    return ProcessPoolExecutor(max(1, min(available, trials)), mp_context=multiprocessing.get_context("spawn"))


def tune(
    snapshots: Iterable[Snapshot],
    settings: Iterable[str] | None = None,
    *,
    capacity: int | None = None,
    executor: Executor | None = None,
    progress: _Progress | None = None,
) -> Tuning:
    """Replay histories with each of several settings, and rank the settings.

    The workers read the histories from a temporary file, once each; Dask's get them from the scheduler.

    Parameters
    ----------
    snapshots : iterable of Snapshot
        The recordings, at least one.
    settings : iterable of str, optional
        Settings in the format of PYTORCH_ALLOC_CONF; by default `default_settings` of the first recording.
    capacity : int, optional
        Bytes that each program could reserve. By default the reserved and free bytes at the last out-of-memory event,
        or else the capacity of the device; unlimited if that is unknown.
    executor : concurrent.futures.Executor, optional
        Runs the trials, each as one task: processes (`process_executor`), or Dask workers
        (`distributed.Client(address).get_executor()`). By default they run in this process, one after the other.
    progress : callable, optional
        Called as `progress(trials_done, trials_total)`.

    Raises
    ------
    ValueError
        If settings are invalid, or there is no recording.
    Unsupported
        If a recording has too many private pools.

    Examples
    --------
    >>> from forebay import OutOfMemory, simulate
    >>> from forebay.snapshot.formats import torch_pickle
    >>> gpu = simulate.Device(96 << 20)
    >>> gpu.record_history()
    >>> gpu.free(gpu.allocate(40 << 20))
    >>> small = gpu.allocate(2 << 20)
    >>> try:
    ...     gpu.allocate(60 << 20)
    ... except OutOfMemory:
    ...     snapshots = torch_pickle.snapshots(gpu.snapshot())
    >>> found = tune(snapshots, grid({"expandable_segments": ["True"], "max_split_size_mb": ["", "64"]}))
    >>> found.recorded.failures, found.best.failures, found.best.environment
    (1, 0, 'PYTORCH_ALLOC_CONF=expandable_segments:True')
    """
    recordings = _at_least_one(snapshots)
    chosen = list(dict.fromkeys(default_settings(recordings[0]) if settings is None else settings))
    recorded_settings = recorded_settings_of(recordings[0])
    for text in chosen:
        recorded_settings.device(1 << 40, text, 0)  # raises ValueError if invalid
    chosen = [text for text in chosen if text != recorded_settings.text]  # these are tried in any case
    replays = Replays(recordings, capacity)
    with shared_with(executor, replays) as run_trials:
        found: dict[int, Trial] = {}
        for number, trial in run_trials([None, *chosen]):
            found[number] = trial
            if progress is not None:
                progress(len(found), len(chosen) + 1)
    recorded, *others = (found[number] for number in sorted(found))  # ranks may be equal
    return _tuning(recorded, others, replays)


def search(
    snapshots: Iterable[Snapshot],
    *,
    trials: int = 40,
    axes: Mapping[str, Sequence[str]] = AXES,
    capacity: int | None = None,
    executor: Executor | None = None,
    progress: _Progress | None = None,
) -> Tuning:
    """Search for the best settings with a limited number of trials.

    From the recorded settings, one setting after the other is changed to the value that is best, until no change of a
    single setting is better.

    Parameters
    ----------
    snapshots : iterable of Snapshot
        The recordings, at least one.
    trials : int, default 40
        Largest number of trials, with that of the recorded settings.
    axes : Mapping of str to sequence of str, optional
        The values to try for each setting; "" leaves it out.
    capacity, executor, progress
        As for `tune`.

    Raises
    ------
    ValueError
        If settings are invalid, there is no recording, or it was made with heaps, which have none of these settings.
    Unsupported
        If a recording has too many private pools.
    """
    recordings = _at_least_one(snapshots)
    recorded_settings = recorded_settings_of(recordings[0])
    if recorded_settings.heaps:
        raise ValueError(f"{recordings[0].device} allocates in heaps, which have none of these settings: use tune()")
    for text in (text for key, values in axes.items() for text in grid({key: values})):
        recorded_settings.device(1 << 40, text, 0)  # raises ValueError if invalid
    replays = Replays(recordings, capacity)
    with shared_with(executor, replays) as run_trials:
        recorded, found = _descend(run_trials, recorded_settings.text, axes, trials, progress)
    return _tuning(recorded, found, replays)


def _descend(
    run_trials: RunTrials,
    start: str,
    axes: Mapping[str, Sequence[str]],
    trials: int,
    progress: _Progress | None,
) -> tuple[Trial, list[Trial]]:
    """Change one setting after the other while that improves the best trial."""
    ((_, recorded),) = run_trials([None])
    known = {start: recorded}
    best, unchanged = start, 0
    while unchanged < len(axes) and len(known) < trials:
        for key, values in axes.items():
            new = [text for text in grid({key: values}, best) if text not in known][: trials - len(known)]
            found: dict[str, Trial] = {}
            for number, trial in run_trials(new):
                found[new[number]] = trial
                if progress is not None:
                    progress(len(known) + len(found), trials)
            known |= {text: found[text] for text in new}  # in this order, as ranks may be equal
            before, best = best, min(known, key=lambda text: known[text].rank)
            unchanged = unchanged + 1 if best == before else 0
            if unchanged >= len(axes):
                break
    return recorded, [trial for text, trial in known.items() if text != start]


def _tuning(recorded: Trial, trials: list[Trial], replays: Replays) -> Tuning:
    histories = replays.histories
    pairs = zip(histories, replays.as_recorded(recorded), strict=True)
    return Tuning(
        recorded=recorded,
        trials=tuple(sorted(trials, key=lambda trial: trial.rank)),
        memory=replays.memory,
        events=sum(history.events for history in histories),
        bounds=replays.bounds(),
        error=max(abs(history.peak_reserved - outcome.peak_reserved) for history, outcome in pairs),
    )


def _at_least_one(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    recordings = list(snapshots)
    if not recordings:
        raise ValueError("there is no recording to tune for: pass at least one snapshot")
    return recordings


def _split(settings: str) -> list[str]:
    """Split settings at the commas outside brackets."""
    parts, depth = [""], 0
    for character in settings:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]
