"""The timeline, compared with minimal scenes and with a simple loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.snapshot_scenes import MIB, START, Scene, long_run, random_history, steps

from forebay.records.model import Action, Snapshot, State
from forebay.snapshot.analysis import _lifetimes
from forebay.snapshot.analysis.timeline import NEVER_SEEN, reconstruct


def replay_backwards(snapshot: Snapshot) -> tuple[list[int], list[int]]:
    """Return allocated and reserved bytes at every moment, by undoing the history from its end."""
    allocated = [sum(int(b["requested"]) for b in snapshot.blocks if b["state"] == State.LIVE)]
    reserved = [sum(int(s["nbytes"]) for s in snapshot.segments)]
    for entry in snapshot.trace[::-1]:
        undo = {Action.ALLOC: (-1, 0), Action.FREE_REQUESTED: (1, 0), Action.RESERVE: (0, -1), Action.RELEASE: (0, 1)}
        undo |= {Action.MAP: (0, -1), Action.UNMAP: (0, 1)}
        live, held = undo.get(Action(entry["action"]), (0, 0))
        allocated.append(allocated[-1] + live * int(entry["nbytes"]))
        reserved.append(reserved[-1] + held * int(entry["nbytes"]))
    return allocated[::-1], reserved[::-1]


@given(steps, st.floats(0, 1), st.booleans())
def test_curves_equal_simple_loop(steps: list[tuple[int, int]], lost: float, growing: bool) -> None:
    snapshot = random_history(steps, lost, growing)
    timeline = reconstruct(snapshot)
    allocated, reserved = replay_backwards(snapshot)
    assert timeline.allocated.tolist() == allocated
    assert timeline.reserved.tolist() == reserved
    assert timeline.peak == allocated.index(max(allocated))


@given(steps, st.floats(0, 1))
def test_live_allocations_add_up_to_curve(steps: list[tuple[int, int]], lost: float) -> None:
    timeline = reconstruct(random_history(steps, lost))
    for moment in range(timeline.moments):
        live = timeline.allocations.live_at(moment)
        assert timeline.allocations.nbytes[live].sum() == timeline.allocated[moment]


@given(steps, st.floats(0, 1), st.booleans())
def test_allocations_carry_address_stream_and_pool(steps: list[tuple[int, int]], lost: float, growing: bool) -> None:
    snapshot = random_history(steps, lost, growing)
    held = reconstruct(snapshot).allocations
    for row in range(len(held.start)):
        if held.start[row]:
            entry = snapshot.trace[held.start[row] - 1]
        elif held.end[row] <= len(snapshot.trace):
            entry = snapshot.trace[held.end[row] - 1]
        else:
            block = next(block for block in snapshot.blocks if block["address"] == held.address[row])
            entry = snapshot.segments[block["segment"]]
            assert entry["address"] <= held.address[row] < entry["address"] + entry["nbytes"]
            assert (held.queue[row], held.pool[row]) == (entry["queue"], entry["pool"])
            continue
        expected = (entry["address"], entry["queue"], entry["pool"])
        assert (held.address[row], held.queue[row], held.pool[row]) == expected


def test_free_ends_previous_allocation_at_address() -> None:
    scene = Scene()
    for _ in range(2):
        block = scene.allocate(512)
        scene.advance(700)
        scene.free(block)
    timeline = reconstruct(scene.snapshot())
    assert timeline.allocations.start.tolist() == [2, 5]  # the first entry is the segment's
    assert timeline.allocations.end.tolist() == [3, 6]
    assert timeline.lifetimes_ns().tolist() == [700, 700]


def test_allocations_before_recording_are_known_by_free_or_block() -> None:
    scene = Scene()
    freed, kept = scene.allocate(512), scene.allocate(1024, scene.stack("app.py:3 keep"))
    scene.free(freed)
    timeline = reconstruct(scene.snapshot(lost=3))
    held = timeline.allocations
    assert sorted(zip(held.nbytes.tolist(), held.stack.tolist(), strict=True)) == [(512, NEVER_SEEN), (1024, 1)]
    assert held.start.tolist() == [0, 0]
    assert timeline.allocated.tolist() == [1536, 1024, 1024]
    assert kept in scene.blocks
    assert timeline.lifetimes_ns().tolist() == [-1, -1]


def test_mapped_pages_are_reserved() -> None:
    scene = Scene(growing=True)
    block = scene.allocate(512)
    scene.free(block)
    scene.release_free_segments()
    scene.record(Action.SNAPSHOT, 0, 0)
    timeline = reconstruct(scene.snapshot())
    assert timeline.reserved.tolist() == [0, *[64 * MIB] * 4, 0, 0]
    assert timeline.allocated.tolist() == [0, 0, 512, 0, 0, 0, 0]


def test_final_state_overrides_incomplete_history() -> None:
    """A free that was not recorded must not count as allocated forever."""
    scene = Scene()
    block = scene.allocate(4096)
    scene.free(block)
    del scene.entries[-2:]
    scene.advance()
    scene.allocate(512)
    timeline = reconstruct(scene.snapshot())
    assert timeline.allocated.tolist() == [0, 0, 4096, 512]


def test_snapshot_without_history_has_one_moment() -> None:
    scene = Scene()
    scene.allocate(4096)
    timeline = reconstruct(scene.snapshot(recorded=False))
    assert timeline.allocated.tolist() == [4096]
    assert timeline.reserved.tolist() == [64 * MIB]
    assert timeline.time_ns.tolist() == [START]


def test_empty_snapshot() -> None:
    timeline = reconstruct(Scene().snapshot())
    assert timeline.allocated.tolist() == timeline.reserved.tolist() == [0]


def test_long_history_ends_with_live_bytes() -> None:
    snapshot = long_run(100_500, 40)
    timeline = reconstruct(snapshot)
    assert timeline.allocated[-1] == snapshot.blocks["requested"].sum() > 0
    assert np.all(timeline.allocated >= 0)


def test_block_without_segment_is_refused():
    """Nothing checks a snapshot that a program makes itself."""
    scene = Scene()
    scene.allocate(MIB)
    snapshot = scene.snapshot()
    with pytest.raises(IndexError, match="block 0 is in segment 0 of 0"):
        reconstruct(replace(snapshot, segments=snapshot.segments[:0]))


@pytest.mark.parametrize("lengths", [(47, 0, 0), (0, 41, 0), (48, 0, 1)])
def test_bytes_that_are_no_rows_are_refused(lengths):
    with pytest.raises(ValueError, match="are no rows of"):
        _lifetimes.match(*map(bytes, lengths))


def test_tables_may_have_gaps():
    snapshot = long_run(1000)
    spread = replace(snapshot, trace=np.repeat(snapshot.trace, 2)[::2])
    assert (reconstruct(spread).allocated == reconstruct(snapshot).allocated).all()
