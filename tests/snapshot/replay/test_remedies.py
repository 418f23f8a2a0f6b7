"""Settings that a replay proves to help, and how exactly the replay reproduces the recording."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.snapshot_programs import MIB, dumped, fragmented, program, without_allocations
from support.snapshot_scenes import training

from forebay import OutOfMemory, simulate
from forebay.snapshot import Action, load
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.replay.engine import what_if
from forebay.snapshot.replay.remedies import available_memory, find_remedies

GPU_SNAPSHOTS = Path(__file__).parents[4] / "shared" / "data" / "gpu-snapshots"


def snapshot_of(gpu):
    (snapshot,) = torch_pickle.parse(dumped(gpu.snapshot()))
    return snapshot


def simulated(peaks):
    """Return a device on which blocks of these MiB were live one after the other, each in a segment of its own."""
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    for mib in peaks:
        gpu.free(gpu.allocate(mib * MIB))
    return gpu


def test_setting_that_avoids_the_error_is_proved():
    snapshot = snapshot_of(fragmented(60))
    found = find_remedies(snapshot)
    assert (found.memory, found.proved, found.fidelity.exact) == (96 * MIB, True, True)
    assert (found.fidelity.recorded, found.initial_blocks, found.events) == (1, 0, 3)
    assert found.helpful[0].environment == "PYTORCH_ALLOC_CONF=expandable_segments:True"
    for remedy in found.tried:
        outcome = what_if(snapshot, remedy.outcome.settings, 96 * MIB)
        assert (outcome == remedy.outcome, remedy.helps) == (True, outcome.ran_out is None)


def test_request_larger_than_the_memory_has_no_remedy():
    gpu = simulate.Device(96 * MIB)
    gpu.record_history()
    with pytest.raises(OutOfMemory):
        gpu.allocate(200 * MIB)
    found = find_remedies(snapshot_of(gpu))
    assert (found.proved, found.helpful) == (True, ())
    assert all(remedy.outcome.refused == (0,) for remedy in found.tried)


def test_nothing_is_claimed_if_the_error_is_not_reproduced():
    found = find_remedies(training())  # recorded by a first-fit allocator
    assert (found.proved, found.helpful, found.fidelity.exact) == (False, (), False)
    assert found.baseline.refused == ()


@pytest.mark.parametrize(
    "options", [{}, {"settings": "expandable_segments:True"}, {"pools": 2}, {"streams": 3}], ids=str
)
def test_whole_recording_is_reproduced_exactly(options):
    (snapshot,) = torch_pickle.parse(dumped(program(2, steps=600, **options)))
    found = find_remedies(snapshot)
    assert found.fidelity.exact
    assert found.fidelity.recorded > 10


def test_advice_is_given_beyond_twice_the_error_of_the_replay():
    """The recording reserves more than its replay, by as much as the best setting saves: none is advised then."""
    snapshot = snapshot_of(simulated(peaks=[40, 60, 80]))
    exact = find_remedies(snapshot)
    assert (exact.fidelity.error, bool(exact.helpful)) == (0, True)
    segments = snapshot.segments.copy()
    saved = exact.baseline.peak_reserved - exact.helpful[0].outcome.peak_reserved
    trace = snapshot.trace.copy()
    row = int(np.flatnonzero(trace["action"] == Action.RESERVE)[0])
    trace["nbytes"][row] += saved  # the recording has reserved more than the replay will
    segments["nbytes"][segments["address"] == trace["address"][row]] += saved
    wrong = find_remedies(replace(snapshot, trace=trace, segments=segments))
    assert (wrong.fidelity.error, wrong.fidelity.exact, wrong.helpful) == (saved, False, ())


def test_history_without_allocations_has_no_remedies():
    found = find_remedies(snapshot_of(without_allocations()))
    assert (found.allocations, found.tried, found.baseline.peak_reserved) == (0, (), 30 * MIB)


def test_expandable_segments_are_not_advised_on_windows():
    gpu = fragmented(60)
    dumped_state = gpu.snapshot()
    for trace in dumped_state["device_traces"]:
        for entry in trace:
            entry["frames"] = [{"filename": r"C:\work\train.py", "line": 3, "name": "main"}]
    (snapshot,) = torch_pickle.parse(dumped(dumped_state))
    found = find_remedies(snapshot)
    assert found.tried
    assert not [remedy for remedy in found.tried if "expandable" in remedy.outcome.settings]


def test_available_memory_is_what_could_be_reserved():
    assert available_memory(snapshot_of(fragmented(60))) == 96 * MIB
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    gpu.set_memory_fraction(0.1)
    gpu.allocate(60 * MIB)
    with pytest.raises(OutOfMemory):
        gpu.allocate(60 * MIB)
    limited = snapshot_of(gpu)
    assert available_memory(limited) == 60 * MIB
    assert available_memory(replace(limited, trace=limited.trace[:0])) is None
    assert available_memory(replace(limited, trace=limited.trace[:0], capacity=7)) == 7


def test_settings_of_forebay_are_set_in_its_own_variable():
    snapshot = snapshot_of(fragmented(60))
    notes = {key: value for key, value in snapshot.notes.items() if key != "from"}
    assert find_remedies(replace(snapshot, notes=notes)).tried[0].environment.startswith("FOREBAY_ALLOC_CONF=")
    old = {key: value for key, value in snapshot.notes.items() if key != "order"}
    assert find_remedies(replace(snapshot, notes=old)).tried[0].environment.startswith("PYTORCH_CUDA_ALLOC_CONF=")


def test_recording_of_a_real_gpu_is_reproduced_exactly():
    path = GPU_SNAPSHOTS / "train_step_cold.pickle"
    if not path.exists():
        pytest.skip("the recordings of real GPUs are not available")
    (snapshot,) = load(path)
    found = find_remedies(snapshot)
    assert (found.fidelity.exact, found.fidelity.equal) == (True, 783)
    assert found.helpful[0].outcome.settings == "expandable_segments:True"
    assert found.helpful[0].outcome.peak_reserved < found.baseline.peak_reserved * 0.95


def test_expandable_segments_that_were_switched_off_are_tried():
    gpu = simulate.Device(96 * MIB, "expandable_segments:False,max_split_size_mb:64")
    gpu.record_history()
    gpu.allocate(MIB)
    found = find_remedies(snapshot_of(gpu))
    assert found.baseline.settings == "expandable_segments:False,max_split_size_mb:64"
    assert "max_split_size_mb:64,expandable_segments:True" in [remedy.outcome.settings for remedy in found.tried]
