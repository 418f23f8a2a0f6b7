"""Trials in workers: the histories are sent without stacks, once, and loaded once by each worker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.snapshot_scenes import training

from forebay.snapshot.formats import native
from forebay.snapshot.replay.trials import Replays, shared_with


def test_histories_are_read_once_and_without_stacks(monkeypatch):
    read, read_files = [], native.read

    def counted(path):
        snapshot = read_files(path)
        read.append((Path(path), len(snapshot.stacks), len(snapshot.trace)))
        return snapshot

    monkeypatch.setattr(native, "read", counted)
    snapshot = training()
    with ThreadPoolExecutor(2) as executor, shared_with(executor, Replays([snapshot])) as run_trials:
        found = dict(run_trials([None, "expandable_segments:True", "max_split_size_mb:64"]))
        (path, stacks, entries) = read[0]
        assert path.exists()
    assert (len(read), stacks, entries) == (1, 1, len(snapshot.trace))
    assert not path.exists()
    assert sorted(found) == [0, 1, 2]


def test_failed_trial_cancels_the_others():
    class Broken(Replays):
        def run(self, settings):
            raise ValueError(settings)

    with shared_with(None, Broken([training()])) as run_trials, pytest.raises(ValueError, match="first"):
        list(run_trials(["first", "second"]))
    with (
        ThreadPoolExecutor(1) as executor,
        shared_with(executor, Replays([training()])) as run_trials,
        pytest.raises(ValueError, match="Unrecognized key 'speed'"),
    ):
        list(run_trials(["speed:3", "expandable_segments:True"]))


def test_trial_counts_all_histories():
    replays = Replays([training(), training(steps=3)], 3 << 30)
    trial = replays.run(None)
    assert len(trial.outcomes) == 2
    assert trial.failures == sum(len(outcome.refused) for outcome in trial.outcomes)
    assert trial.peak_reserved == max(outcome.peak_reserved for outcome in trial.outcomes)
    assert trial.device_calls == sum(outcome.device_allocs + outcome.device_frees for outcome in trial.outcomes)
    assert trial.rank[0] == trial.stopped
