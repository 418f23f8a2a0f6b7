"""The state in which a history began, placed on a simulated device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.snapshot_programs import MIB, dumped, program

from forebay import simulate
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.replay.engine import BEFORE, History, what_if
from forebay.snapshot.replay.remedies import find_remedies

SETTINGS = [
    {},
    {"settings": "expandable_segments:True"},
    {"settings": "max_split_size_mb:64"},
    {"pools": 2},
    {"streams": 3},
    {"settings": "expandable_segments:True", "streams": 2, "pools": 1},
]


def snapshot_of(gpu):
    (snapshot,) = torch_pickle.parse(dumped(gpu.snapshot()))
    return snapshot


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_history_that_begins_late_is_reproduced_exactly(options, seed):
    (snapshot,) = torch_pickle.parse(dumped(program(seed, steps=900, begin=500, **options)))
    found = find_remedies(snapshot)
    assert found.initial_blocks > 0
    assert found.fidelity.recorded > 5
    assert found.fidelity.exact
    assert found.baseline.peak_reserved == found.fidelity.recorded_peak
    assert all(remedy.outcome.from_recorded_state for remedy in found.tried)


def test_replay_begins_with_the_recorded_state():
    """Two of three segments of 30 MiB are cached when the history begins. They serve its only request."""
    gpu = simulate.Device(1 << 30)
    kept = [gpu.allocate(30 * MIB) for _ in range(3)]
    for address in kept[1:]:
        gpu.free(address)
    gpu.record_history()
    gpu.allocate(12 * MIB)
    snapshot = snapshot_of(gpu)
    for settings in ("", "expandable_segments:True"):
        found = what_if(snapshot, settings)
        assert (found.peak_reserved, found.device_allocs, found.from_recorded_state) == (90 * MIB, 0, True)


def test_gaps_between_blocks_are_reproduced():
    """A request that fits no gap of a segment needs a new one, though the gaps together are larger."""
    gpu = simulate.Device(1 << 30)
    blocks = [gpu.allocate(8 * MIB) for _ in range(5)]  # 20 MiB of segments: two blocks in each
    for address in blocks[::2]:
        gpu.free(address)
    gpu.record_history()
    gpu.allocate(9 * MIB)
    recorded = gpu.stats()["reserved_bytes.all.peak"]
    assert what_if(snapshot_of(gpu)).peak_reserved == recorded


def test_smaller_device_begins_with_the_live_blocks():
    gpu = simulate.Device(1 << 30)
    kept = [gpu.allocate(30 * MIB) for _ in range(3)]
    gpu.free(kept.pop())
    gpu.record_history()
    gpu.allocate(MIB)
    snapshot = snapshot_of(gpu)
    assert what_if(snapshot, memory=92 * MIB).from_recorded_state
    found = what_if(snapshot, memory=64 * MIB)
    assert (found.from_recorded_state, found.refused, found.peak_reserved) == (False, (), 62 * MIB)
    assert what_if(snapshot, memory=40 * MIB).ran_out == BEFORE


@pytest.mark.parametrize("nbytes", [0, 1, 511, (2 << 20) + 1, 1 << 62])
@pytest.mark.parametrize("growing", [0, 1])
def test_segments_of_impossible_sizes_are_not_placed(nbytes, growing):
    gpu = simulate.Device(1 << 30)
    gpu.allocate(30 * MIB)
    gpu.record_history()
    gpu.allocate(2 * MIB)
    snapshot = snapshot_of(gpu)
    segments = snapshot.segments.copy()
    segments["nbytes"][0], segments["growing"][0] = nbytes, growing
    found = what_if(replace(snapshot, segments=segments))
    assert found.peak_reserved < 1 << 40
    assert found.complete


def test_other_memory_of_the_device_counts():
    gpu = simulate.Device(96 * MIB)
    gpu.free(gpu.allocate(40 * MIB))
    gpu.record_history()
    gpu.allocate(MIB)
    history = History(snapshot_of(gpu))
    for other_used, is_placed in ((50 * MIB, True), (60 * MIB, False)):
        found = history.run(memory=96 * MIB, other_used=other_used)
        assert (found.from_recorded_state, found.refused) == (is_placed, ())
