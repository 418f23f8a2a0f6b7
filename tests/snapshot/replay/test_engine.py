"""Replay of histories: allocations at their recorded addresses, and outcomes with other settings."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.snapshot_programs import MIB, dumped, program

from forebay import OutOfMemory, simulate
from forebay.snapshot import load
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.replay.engine import BEFORE, History, check, what_if

GPU_SNAPSHOTS = Path(__file__).parents[4] / "shared" / "data" / "gpu-snapshots"
RECORDED = {
    "forward_mixed_precision": 2702,
    "train_older_format": 3505,
    "train_step_cold": 6771,
    "train_step_warm": 6769,
}
SETTINGS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:40",
    "roundup_power2_divisions:4",
    "expandable_segments:True,max_split_size_mb:40",
    "expandable_segments:True,large_segment_size_mb:12",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.8",
]
SCENES = {
    "whole": {},
    "late start": {"begin": 700},
    "full ring buffer": {"entries": 600},
    "pools": {"pools": 2, "entries": 1500},
    "streams": {"streams": 3, "begin": 500},
    "pools and streams": {"pools": 2, "streams": 3, "entries": 1000},
}


def recorded(*arguments, **options):
    (snapshot,) = torch_pickle.parse(dumped(program(*arguments, **options)))
    return snapshot


def snapshot_of(gpu):
    (snapshot,) = torch_pickle.parse(dumped(gpu.snapshot()))
    return snapshot


@pytest.mark.parametrize("name", RECORDED)
def test_histories_of_real_gpus_are_placed_as_recorded(name):
    path = GPU_SNAPSHOTS / f"{name}.pickle"
    if not path.exists():
        pytest.skip("the recordings of real GPUs are not available")
    (snapshot,) = load(path)
    found = check(snapshot)
    assert (found.placed, found.total, found.first) == (RECORDED[name], RECORDED[name], None)
    assert not found.by_arrival  # recorded before PyTorch 2.10
    assert found.learned == 0
    assert what_if(snapshot).ran_out is None


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("scene", SCENES)
def test_histories_of_simulated_devices_are_placed_as_recorded(settings, scene):
    for seed in (1, 2):
        found = check(recorded(seed, settings, **SCENES[scene]))
        assert found.equal, found.first
        assert found.total > 100


def test_first_difference_is_reported_and_does_not_affect_later_allocations():
    """GIVEN free blocks of 4 and 12 MiB, WHEN 3 MiB are recorded in the larger one, THEN only that one differs."""
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    small, _, large = (gpu.allocate(8 * MIB) for _ in range(3))
    best, other = small + 16 * MIB, large + 8 * MIB
    assert (gpu.allocate(3 * MIB), gpu.allocate(2 * MIB)) == (best, other)
    snapshot = snapshot_of(gpu)
    trace = snapshot.trace.copy()
    trace["address"][-2:] = other, best  # as a worst-fit allocator would place them
    found = check(replace(snapshot, trace=trace))
    assert (found.placed, found.total) == (4, 5)
    assert not found.equal
    assert (found.first.entry, found.first.placed, found.first.recorded) == (len(trace) - 2, best, other)
    assert f"entry 5: 3.00 MiB for stream 0 placed at {best:#x}, recorded at {other:#x}" in str(found.first)


def test_ranking_by_address_is_distinguished_from_arrival():
    """GIVEN equal free blocks, the older at the higher address, WHEN the lower is used, THEN the rank is by address."""
    gpu = simulate.Device(1 << 30)
    first, second, third = (gpu.allocate(20 * MIB) for _ in range(3))
    gpu.free(first)
    gpu.empty_cache()  # the lowest address is free
    gpu.record_history()
    lowest = gpu.allocate(20 * MIB)
    assert lowest == first
    gpu.free(lowest)
    gpu.free(third)
    gpu.allocate(20 * MIB)
    by_arrival = snapshot_of(gpu)
    assert by_arrival.trace["address"][-1] == third
    assert check(by_arrival).by_arrival

    trace, blocks = by_arrival.trace.copy(), by_arrival.blocks.copy()
    trace["address"][-1] = lowest  # as before 2.10
    blocks["state"] = [block["address"] in (lowest, second) for block in blocks]
    found = check(replace(by_arrival, trace=trace, blocks=blocks))
    assert (found.equal, found.by_arrival) == (True, False)


def test_devices_of_one_file_are_replayed_separately():
    both = program(1)
    other = program(2, index=1)
    both["segments"] += other["segments"]
    both["device_traces"] += other["device_traces"][1:]
    first, second = torch_pickle.parse(dumped(both))
    assert [first.device, second.device] == ["cuda:0", "cuda:1"]
    assert len(first.trace) != len(second.trace)
    assert check(first).equal
    assert check(second).equal


# What-if analysis


def test_replay_with_recorded_settings_has_the_same_statistics():
    for settings in SETTINGS[:4]:
        gpu = simulate.Device(2 << 30, settings)
        gpu.record_history()
        held = [gpu.allocate(7 * MIB + at) for at in range(0, 40 * MIB, 3 * MIB)]
        for address in held[::2]:
            gpu.free(address)
        held = [gpu.allocate(9 * MIB) for _ in range(5)]
        found = what_if(snapshot_of(gpu))
        stats = gpu.stats()
        assert found.peak_reserved == stats["reserved_bytes.all.peak"]
        assert found.peak_allocated == stats["allocated_bytes.all.peak"]
        assert (found.device_allocs, found.device_frees) == (stats["num_device_alloc"], stats["num_device_free"])
        assert (found.ran_out, found.stopped, found.complete) == (None, False, True)


def fragmented(total: int, settings: str = ""):
    """Return a device with 2 MiB live in a segment of 40 MiB: 60 MiB do not fit if the total is 96 MiB."""
    gpu = simulate.Device(total, settings)
    gpu.record_history()
    gpu.free(gpu.allocate(40 * MIB))
    gpu.allocate(2 * MIB)
    return gpu


def test_replay_finds_settings_that_avoid_oom():
    gpu = fragmented(96 * MIB)
    with pytest.raises(OutOfMemory):
        gpu.allocate(60 * MIB)
    snapshot = snapshot_of(gpu)
    history = History(snapshot)
    assert history.memory == 96 * MIB  # free plus reserved bytes at the out-of-memory event
    as_it_was = what_if(snapshot)
    assert (as_it_was.ran_out, as_it_was.stopped) == (len(snapshot.trace) - 1, False)
    saved = what_if(snapshot, "expandable_segments:True")
    assert saved.ran_out is None
    assert saved.peak_reserved <= 96 * MIB


def test_replay_stops_at_first_allocation_that_does_not_fit():
    gpu = fragmented(1 << 30)
    gpu.allocate(60 * MIB)
    snapshot = snapshot_of(gpu)
    found = what_if(snapshot, memory=96 * MIB)
    assert (found.ran_out, found.stopped) == (len(snapshot.trace) - 1, True)
    assert what_if(snapshot, memory=102 * MIB).ran_out is None


def test_initially_live_blocks_are_allocated_first():
    """If they do not fit, the replay runs out of memory before the first entry."""
    gpu = simulate.Device(1 << 30)
    kept = [gpu.allocate(30 * MIB) for _ in range(3)]
    gpu.record_history()
    gpu.free(kept[0])
    gpu.allocate(12 * MIB)
    snapshot = snapshot_of(gpu)
    found = what_if(snapshot)
    assert found.peak_reserved == 90 * MIB
    assert found.device_allocs == 0
    assert what_if(snapshot, memory=64 * MIB).ran_out == BEFORE


def test_empty_cache_is_replayed():
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    gpu.free(gpu.allocate(30 * MIB))
    gpu.empty_cache()
    gpu.allocate(50 * MIB)
    found = what_if(snapshot_of(gpu))
    assert (found.peak_reserved, found.device_frees) == (50 * MIB, 1)


def test_deferred_free_completes_as_recorded():
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    gpu.hold_events()
    address = gpu.allocate(30 * MIB)
    gpu.record_stream(address, 1)
    gpu.free(address)
    gpu.allocate(30 * MIB)
    gpu.release_events()
    gpu.allocate(30 * MIB)
    snapshot = snapshot_of(gpu)
    assert check(snapshot).equal
    assert what_if(snapshot).peak_reserved == 60 * MIB
    assert what_if(snapshot, memory=32 * MIB).refused == (6,)  # the third allocation; the second waits


def test_private_pools_are_separate_with_other_settings():
    gpu = simulate.Device(1 << 30)
    pool = gpu.new_pool()
    gpu.record_history()
    gpu.free(gpu.allocate(30 * MIB))
    with gpu.use_pool(pool):
        gpu.allocate(30 * MIB)
    found = what_if(snapshot_of(gpu), "expandable_segments:True")
    assert found.peak_reserved == 2 * 40 * MIB


def test_invalid_settings_raise_pytorch_error():
    with pytest.raises(ValueError, match="Unrecognized key 'foo'"):
        what_if(recorded(steps=10), "foo:1")


def test_replay_reports_progress_and_stops_at_the_time_limit():
    snapshot = recorded()
    seen: list[tuple[int, int]] = []
    what_if(snapshot, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    assert not History(snapshot).run(seconds=-1).complete
    check(snapshot, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(snapshot.trace), len(snapshot.trace))


@pytest.mark.slow
def test_inconsistent_history_is_replayed_without_errors():
    snapshot = recorded(3, "expandable_segments:True", pools=1, streams=2, begin=200)
    for seed in range(20):
        shuffled = snapshot.trace.copy()
        np.random.default_rng(seed).shuffle(shuffled)
        if seed % 2:
            shuffled["address"] += np.uint64(512 * seed)
            shuffled["nbytes"] //= seed
        inconsistent = replace(snapshot, trace=shuffled)
        found = check(inconsistent)
        assert 0 <= found.placed <= found.total
        what_if(inconsistent)


def test_empty_history_is_replayed():
    snapshot = recorded(steps=0)
    assert check(snapshot).total == 0
    assert what_if(snapshot, "expandable_segments:True").peak_reserved == 0


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_profiler_that_keeps_frames_does_not_change_the_replay(settings):
    (snapshot,) = torch_pickle.snapshots(program(5, settings, pools=1, streams=2, total=1 << 30))
    history, frames = History(snapshot), []
    expected = history.run(memory=1 << 29)
    sys.setprofile(lambda frame, *_: frames.append(frame))  # as a sampling profiler does with some of them
    try:
        found = history.run(memory=1 << 29)
    finally:
        sys.setprofile(None)
    assert found == expected
    assert expected.device_allocs
