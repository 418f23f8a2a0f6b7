"""Choice of settings: grids, ranks, searches, and executors that give the same results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.snapshot_programs import MIB, dumped, fragmented, program

from forebay import simulate
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.replay.engine import History, what_if
from forebay.snapshot.replay.tuning import AXES, default_settings, grid, process_executor, search, tune


def snapshot_of(gpu):
    (snapshot,) = torch_pickle.parse(dumped(gpu.snapshot()))
    return snapshot


def recorded(seed: int, **options):
    (snapshot,) = torch_pickle.parse(dumped(program(seed, steps=400, **options)))
    return snapshot


def summary(tuning):
    return [(trial.settings, trial.rank, trial.outcomes) for trial in (tuning.recorded, *tuning.trials)]


@given(st.dictionaries(st.sampled_from(list(AXES)), st.lists(st.sampled_from(["", "2", "64"]), min_size=1), max_size=3))
def test_grid_has_every_combination_once(values):
    found = grid(values)
    assert len(found) == len(set(found))
    for row in product(*values.values()):
        words = [f"{key}:{value}" for key, value in zip(values, row, strict=True) if value]
        assert ",".join(words) in found


def test_grid_keeps_other_settings():
    base = "roundup_power2_divisions:[256:1,>:8],max_split_size_mb:20"
    assert grid({"max_split_size_mb": ["", "64"]}, base) == [
        "roundup_power2_divisions:[256:1,>:8]",
        "roundup_power2_divisions:[256:1,>:8],max_split_size_mb:64",
    ]


def test_settings_are_ranked_by_failures_then_memory_then_calls():
    found = tune([snapshot_of(fragmented(60))])
    assert [trial.rank for trial in found.trials] == sorted(trial.rank for trial in found.trials)
    assert (found.recorded.failures, found.best.failures, found.memory) == (1, 0, (96 * MIB,))
    assert found.best.environment == "PYTORCH_ALLOC_CONF=expandable_segments:True"
    assert {trial.settings for trial in found.trials} == set(default_settings(snapshot_of(fragmented(60)))) - {""}
    assert found.events == 3


@pytest.mark.parametrize("options", [{}, {"pools": 2, "streams": 2}, {"begin": 150}], ids=str)
def test_trials_equal_single_replays(options):
    snapshots = [recorded(1, **options), recorded(2, **options)]
    found = tune(snapshots, ["expandable_segments:True", "max_split_size_mb:40"], capacity=2 << 30)
    for trial in found.trials:
        assert trial.outcomes == tuple(what_if(snapshot, trial.settings, 2 << 30) for snapshot in snapshots)
    assert found.recorded.outcomes == tuple(History(snapshot).run(None, 2 << 30) for snapshot in snapshots)


def test_threads_give_the_same_results():
    snapshots = [recorded(1), snapshot_of(fragmented(60))]
    with ThreadPoolExecutor(2) as executor:
        assert summary(tune(snapshots, executor=executor)) == summary(tune(snapshots))
        assert summary(search(snapshots, executor=executor)) == summary(search(snapshots))


@pytest.mark.slow
def test_processes_give_the_same_results():
    snapshots = [recorded(1, streams=3), snapshot_of(fragmented(60))]
    done = []
    with process_executor(3, 2) as executor:
        settings = ["expandable_segments:True", "roundup_power2_divisions:4"]
        found = tune(snapshots, settings, executor=executor, progress=lambda *counts: done.append(counts))
        assert summary(found) == summary(tune(snapshots, settings))
        assert done == [(1, 3), (2, 3), (3, 3)]


def test_search_is_bounded_and_never_worse_than_the_recorded_settings():
    snapshot = recorded(3, total=1 << 30)
    for trials in (1, 2, 7, 40):
        found = search([snapshot], trials=trials)
        assert 1 + len(found.trials) <= trials
        assert found.best.rank <= found.recorded.rank
    done = []
    found = search([snapshot], progress=lambda *counts: done.append(counts))
    assert done == [(number, 40) for number in range(2, 2 + len(found.trials))]


def test_search_finds_the_best_of_the_grid_where_settings_are_independent():
    snapshot = snapshot_of(fragmented(60))
    axes = {"expandable_segments": ["", "True"], "max_split_size_mb": ["", "64"]}
    assert search([snapshot], axes=axes).best.rank == tune([snapshot], grid(axes)).best.rank


def test_recorded_settings_are_best_if_no_others_are_better():
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    gpu.allocate(20 * MIB)
    found = tune([snapshot_of(gpu)], ["roundup_power2_divisions:4"])
    assert found.best is found.recorded


def test_invalid_arguments_are_rejected():
    with pytest.raises(ValueError, match="max_split_size_mb too small"):
        tune([snapshot_of(fragmented(60))], ["max_split_size_mb:1"])
    with pytest.raises(ValueError, match="Unrecognized key 'speed'"):
        search([snapshot_of(fragmented(60))], axes={"speed": ["3"]})
    for function in (tune, search):
        with pytest.raises(ValueError, match="there is no recording"):
            function([])
