"""The recorded history: who allocated what, and what a snapshot of it says."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import forebay
from forebay import memory
from forebay.snapshot.model import Action, State

MIB = 1 << 20


@pytest.fixture
def recorded(fake):
    memory.record_history(device="fake:0")
    return fake


def actions(device="fake:0"):
    return [Action(action).name for action in memory.snapshot(device).trace["action"]]


def test_nothing_is_recorded_unless_asked(fake):
    forebay.allocate(1000, "fake:0")
    taken = memory.snapshot("fake:0")
    assert (len(taken.trace), taken.lost, taken.device, taken.capacity) == (0, 0, "fake:0", 64 * MIB)
    assert len(taken.segments) == 1


def test_the_story_of_a_block(recorded):
    stream = forebay.Stream("fake:0")
    block = forebay.allocate(1000, "fake:0")
    block.used_on(stream.handle)
    stream.queue.call(lambda: None)
    del block
    assert actions() == ["RESERVE", "TAKE", "GIVE"]
    memory.empty_cache("fake:0")
    assert actions() == ["RESERVE", "TAKE", "GIVE", "GIVEN", "RELEASE"]


def test_a_stack_leads_to_its_line(recorded):
    kept = forebay.empty(1000, device="fake:0")
    taken = memory.snapshot("fake:0")
    (live,) = taken.blocks[taken.blocks["state"] == State.LIVE]
    places, row = [], live["stack"]
    while row:
        frame = taken.frames[taken.stacks["frame"][row]]
        places.append((taken.strings[frame["file"]], taken.strings[frame["name"]]))
        row = taken.stacks["parent"][row]
    functions = [name for file, name in places if file == __file__]
    assert functions == ["test_a_stack_leads_to_its_line"]
    assert live["requested"] == kept.nbytes


def test_an_oom_is_an_entry(recorded):
    with pytest.raises(forebay.OutOfMemory):
        forebay.allocate(100 * MIB, "fake:0")
    taken = memory.snapshot("fake:0")
    (oom,) = taken.trace[taken.trace["action"] == Action.OOM]
    assert (oom["nbytes"], oom["address"]) == (100 * MIB, 64 * MIB)  # where others have an address: bytes free


def test_the_oldest_entries_go(fake):
    memory.record_history(10, device="fake:0")
    for _ in range(20):
        forebay.allocate(1000, "fake:0")
    taken = memory.snapshot("fake:0")
    assert len(taken.trace) == 10
    assert taken.lost == 1 + 20 * 3 - 10


@pytest.mark.parametrize("depth", [0, 1, 1000])
def test_the_depth_of_stacks(fake, depth):
    def nest(n):
        return nest(n - 1) if n else forebay.allocate(1000, "fake:0")

    memory.record_history(depth=depth, device="fake:0")
    nest(300)
    assert len(memory.snapshot("fake:0").stacks) - 1 <= 3 * min(depth, 256)  # it takes, grows and takes again


def test_stopping_forgets(recorded):
    kept = forebay.allocate(1000, "fake:0")
    memory.record_history(None, device="fake:0")
    taken = memory.snapshot("fake:0")
    assert len(taken.trace) == 0
    assert not np.any(taken.blocks["stack"])
    assert kept.size == 1024


@pytest.mark.parametrize("wrong", [0, -1])
def test_what_cannot_be_recorded(fake, wrong):
    with pytest.raises(ValueError, match="at least 1, or None to stop"):
        memory.record_history(wrong, device="fake:0")
    with pytest.raises(ValueError, match="number of frames"):
        memory.record_history(depth=-1, device="fake:0")


def test_notes_and_statistics_go_along(fake):
    kept = forebay.allocate(1000, "fake:0")
    taken = memory.snapshot("fake:0", notes={"run": 7})
    assert taken.notes["run"] == 7
    assert taken.notes["allocator_settings"]["expandable_segments"] is False
    assert taken.stats == memory.memory_stats("fake:0")
    assert kept.size == 1024


def test_what_a_torch_snapshot_is_made_of_is_no_work_for_the_garbage_collector():
    """A history of 100,000 entries would be: only what could lead back to itself is looked at."""
    kept = forebay.allocate(1000, "host:0")
    segment = forebay.memory.memory_snapshot("host:0")["segments"][0]
    assert gc.is_tracked(segment)
    assert not any(gc.is_tracked(block) for block in segment["blocks"])
    segment["blocks"][0]["mine"] = segment  # it can be from now on
    assert gc.is_tracked(segment["blocks"][0])
    kept.free()
