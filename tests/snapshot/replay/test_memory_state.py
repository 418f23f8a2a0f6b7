"""Memory states: segments and blocks at any moment of a history."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from support.snapshot_programs import MIB, dumped, program
from support.snapshot_scenes import random_history, steps

from forebay import simulate
from forebay.records.model import State
from forebay.snapshot import load
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.replay.memory_state import MemoryState, memory_state

GPU_SNAPSHOTS = Path(__file__).parents[4] / "shared" / "data" / "gpu-snapshots"


def snapshot_of(gpu):
    (snapshot,) = torch_pickle.parse(dumped(gpu.snapshot()))
    return snapshot


def parts(state: MemoryState) -> int:
    return state.requested + state.rounding + state.pending + state.releasable + state.fragmented


def is_final_state(state: MemoryState, snapshot) -> None:
    blocks = snapshot.blocks
    used, free = blocks[blocks["state"] != State.FREE], blocks[blocks["state"] == State.FREE]
    assert state.reserved == parts(state) == int(snapshot.segments["nbytes"].sum())
    assert state.segments["nbytes"].tolist() == snapshot.segments["nbytes"].tolist()
    assert state.blocks["address"].tolist() == used["address"].tolist()
    assert state.blocks["nbytes"].tolist() == used["nbytes"].tolist()
    assert state.blocks["segment"].tolist() == used["segment"].tolist()
    assert state.pending == int(used["nbytes"][used["state"] == State.PENDING_FREE].sum())
    assert state.largest_free() == int(free["nbytes"].max(initial=0))


@pytest.mark.parametrize(
    "options",
    [{}, {"settings": "expandable_segments:True"}, {"pools": 2, "streams": 3}, {"begin": 400}],
    ids=str,
)
def test_each_moment_equals_the_final_state_of_a_shorter_history(options):
    """GIVEN a program, WHEN it is stopped after some steps, THEN that state is found in its longer history."""
    (whole,) = torch_pickle.parse(dumped(program(3, steps=700, **options)))
    is_final_state(memory_state(whole), whole)
    for length in (450, 560, 660):
        (shorter,) = torch_pickle.parse(dumped(program(3, steps=length, **options)))
        state = memory_state(whole, len(shorter.trace))
        assert state.reserved == parts(state) == int(shorter.segments["nbytes"].sum())
        assert state.blocks["address"].tolist() == [
            block["address"] for block in shorter.blocks if block["state"] != State.FREE
        ]


def test_history_that_lost_its_oldest_entries_has_the_same_states():
    (whole,) = torch_pickle.parse(dumped(program(3, steps=700)))
    (short,) = torch_pickle.parse(dumped(program(3, steps=700, entries=300)))
    lost = len(whole.trace) - len(short.trace)
    for moment in (0, 150, 300):
        state, other = memory_state(short, moment), memory_state(whole, lost + moment)
        assert state.segments["live"].tolist() == other.segments["live"].tolist()


@given(steps)
@settings(max_examples=25, deadline=None)
def test_parts_add_up_to_the_reserved_bytes_at_every_moment(steps):
    for growing in (False, True):
        snapshot = random_history(steps, growing=growing)
        timeline = reconstruct(snapshot)
        for moment in {0, len(snapshot.trace) // 2, len(snapshot.trace)}:
            state = memory_state(snapshot, moment, timeline=timeline)
            assert state.reserved == parts(state) == timeline.reserved[moment]
            assert state.requested == timeline.allocated[moment]
            assert min(state.rounding, state.pending, state.releasable, state.fragmented) >= 0


def test_free_bytes_beside_a_block_are_fragmented_and_those_of_a_free_segment_are_not():
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    first, second = gpu.allocate(40 * MIB), gpu.allocate(30 * MIB)
    gpu.free(first)
    gpu.free(second)
    small = gpu.allocate(25 * MIB, 0)
    state = memory_state(snapshot_of(gpu))
    assert (state.requested, state.fragmented, state.releasable) == (25 * MIB, 5 * MIB, 40 * MIB)
    assert (state.largest_free(), state.largest_free(queue=7), state.largest_free(pool=0)) == (40 * MIB, 0, 40 * MIB)
    gpu.free(small)


def test_whole_free_pages_of_expandable_segments_can_return_to_the_device():
    gpu = simulate.Device(1 << 30, "expandable_segments:True")
    gpu.record_history()
    first, second = gpu.allocate(50 * MIB), gpu.allocate(2 * MIB)
    gpu.free(first)
    state = memory_state(snapshot_of(gpu))
    assert (state.reserved, state.requested) == (60 * MIB, 2 * MIB)
    assert (state.releasable, state.fragmented) == (40 * MIB, 18 * MIB)  # pages of 20 MiB; the block is in the third
    gpu.free(second)


def test_freed_blocks_that_other_streams_use_are_pending():
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    gpu.hold_events()
    address = gpu.allocate(4 * MIB)
    gpu.record_stream(address, 5)
    gpu.free(address)
    held = snapshot_of(gpu)
    assert (memory_state(held).pending, memory_state(held).requested) == (4 * MIB, 0)
    gpu.synchronize()
    gpu.allocate(1 * MIB)
    later = memory_state(snapshot_of(gpu), len(held.trace))
    assert (later.pending, later.requested) == (4 * MIB, 0)


def test_blocks_have_the_stacks_of_their_allocations():
    snapshot = random_history([(slot, 1000 + slot) for slot in range(6)] + [(2, 5), (2, 70_000)])
    held = reconstruct(snapshot).allocations
    state = memory_state(snapshot)
    expected = {int(held.address[row]): int(held.stack[row]) for row in held.live_at(len(snapshot.trace))}
    assert {int(block["address"]): int(block["stack"]) for block in state.blocks} == expected


def test_moment_outside_the_history_is_rejected():
    snapshot = random_history([(1, 1000)])
    with pytest.raises(IndexError, match="moment 99 is not in the history, which has 2 entries"):
        memory_state(snapshot, 99)


def test_snapshot_without_a_history_has_its_final_state():
    snapshot = random_history([(1, 1000), (2, 2000)])
    empty = replace(snapshot, trace=snapshot.trace[:0])
    is_final_state(memory_state(empty), empty)


@pytest.mark.parametrize("name", ["forward_mixed_precision", "train_older_format", "train_step_warm"])
def test_final_states_of_real_gpus_are_exact(name):
    path = GPU_SNAPSHOTS / f"{name}.pickle"
    if not path.exists():
        pytest.skip("the recordings of real GPUs are not available")
    (snapshot,) = load(path)
    is_final_state(memory_state(snapshot), snapshot)
    timeline = reconstruct(snapshot)
    state = memory_state(snapshot, timeline.peak, timeline=timeline)
    assert (state.reserved, state.requested) == (timeline.reserved[timeline.peak], timeline.allocated[timeline.peak])
    assert parts(state) == state.reserved
