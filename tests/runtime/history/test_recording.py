"""Recorded memory history and its snapshots."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import forebay
from forebay import memory
from forebay.records.model import Action, State

MIB = 1 << 20


@pytest.fixture
def recorded(fake):
    memory.record_history(device="fake:0")
    return fake


def actions(device="fake:0"):
    return [Action(action).name for action in memory.snapshot(device).trace["action"]]


def test_history_is_off_by_default(fake):
    forebay.allocate(1000, "fake:0")
    taken = memory.snapshot("fake:0")
    assert (len(taken.trace), taken.lost, taken.device, taken.capacity) == (0, 0, "fake:0", 64 * MIB)
    assert len(taken.segments) == 1


def test_history_has_all_actions_of_a_block(recorded):
    stream = forebay.Stream("fake:0")
    block = forebay.allocate(1000, "fake:0")
    block.record_stream(stream.handle)
    stream.queue.call(lambda: None)
    del block
    assert actions() == ["RESERVE", "ALLOC", "FREE_REQUESTED"]
    memory.empty_cache("fake:0")
    assert actions() == ["RESERVE", "ALLOC", "FREE_REQUESTED", "FREE_COMPLETED", "RELEASE"]


def test_live_block_has_stack_of_its_allocation(recorded):
    kept = forebay.empty(1000, device="fake:0")
    taken = memory.snapshot("fake:0")
    (live,) = taken.blocks[taken.blocks["state"] == State.LIVE]
    frames, row = [], live["stack"]
    while row:
        frame = taken.frames[taken.stacks["frame"][row]]
        frames.append((taken.strings[frame["file"]], taken.strings[frame["name"]]))
        row = taken.stacks["parent"][row]
    functions = [name for file, name in frames if file == __file__]
    assert functions == ["test_live_block_has_stack_of_its_allocation"]
    assert live["requested"] == kept.nbytes


def test_history_has_out_of_memory_entry(recorded):
    with pytest.raises(forebay.OutOfMemory):
        forebay.allocate(100 * MIB, "fake:0")
    taken = memory.snapshot("fake:0")
    (oom,) = taken.trace[taken.trace["action"] == Action.OOM]
    assert (oom["nbytes"], oom["address"]) == (100 * MIB, 64 * MIB)  # the address field has the free bytes


def test_oldest_entries_are_dropped(fake):
    memory.record_history(10, device="fake:0")
    for _ in range(20):
        forebay.allocate(1000, "fake:0")
    taken = memory.snapshot("fake:0")
    assert len(taken.trace) == 10
    assert taken.lost == 1 + 20 * 3 - 10


@pytest.mark.parametrize("depth", [0, 1, 1000])
def test_depth_limits_stacks(fake, depth):
    def nest(n):
        return nest(n - 1) if n else forebay.allocate(1000, "fake:0")

    memory.record_history(depth=depth, device="fake:0")
    nest(300)
    stacks = 4  # of the allocation, of its request, of the segment, and of the free if entries have metadata
    assert len(memory.snapshot("fake:0").stacks) - 1 <= stacks * min(depth, 256)


def test_stop_discards_the_history_but_not_the_stacks_of_live_blocks(recorded):
    kept = forebay.allocate(1000, "fake:0")
    before = memory.snapshot("fake:0")
    memory.record_history(None, device="fake:0")
    taken = memory.snapshot("fake:0")
    assert len(taken.trace) == 0
    assert np.count_nonzero(taken.blocks["stack"]) == np.count_nonzero(before.blocks["stack"]) == 1
    assert len(taken.stacks) < len(before.stacks)
    del kept
    memory.record_history(None, device="fake:0")
    assert len(memory.snapshot("fake:0").stacks) == 1


@pytest.mark.parametrize("wrong", [0, -1])
def test_record_history_rejects_invalid_numbers(fake, wrong):
    with pytest.raises(ValueError, match="at least 1, or None to stop"):
        memory.record_history(wrong, device="fake:0")
    with pytest.raises(ValueError, match="number of frames"):
        memory.record_history(depth=-1, device="fake:0")


def test_snapshot_has_notes_and_statistics(fake):
    kept = forebay.allocate(1000, "fake:0")
    taken = memory.snapshot("fake:0", notes={"run": 7})
    assert taken.notes["run"] == 7
    assert taken.notes["allocator_settings"]["expandable_segments"] is False
    assert taken.stats == memory.memory_stats("fake:0")
    assert kept.size == 1024


def test_torch_snapshot_rows_are_untracked_by_garbage_collector():
    """Only dicts that could be part of a reference cycle are tracked, which matters for 100,000 entries."""
    kept = forebay.allocate(1000, "cpu")
    segment = forebay.memory.memory_snapshot("cpu")["segments"][0]
    assert gc.is_tracked(segment)
    assert not any(gc.is_tracked(block) for block in segment["blocks"])
    segment["blocks"][0]["mine"] = segment  # now a cycle is possible
    assert gc.is_tracked(segment["blocks"][0])
    kept.free()
