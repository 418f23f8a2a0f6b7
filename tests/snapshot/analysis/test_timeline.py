"""The timeline against small scenes, and against a loop that anybody can follow."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.snapshot_scenes import MIB, START, Scene, long_run, steps, told

from forebay.snapshot.analysis.timeline import NEVER_SEEN, reconstruct
from forebay.snapshot.model import Action, Snapshot, State


def slowly(snapshot: Snapshot) -> tuple[list[int], list[int]]:
    """Allocated and reserved bytes at every moment, by undoing the history from its end."""
    allocated = [sum(int(b["requested"]) for b in snapshot.blocks if b["state"] == State.LIVE)]
    reserved = [sum(int(s["nbytes"]) for s in snapshot.segments)]
    for entry in snapshot.trace[::-1]:
        undo = {Action.TAKE: (-1, 0), Action.GIVE: (1, 0), Action.RESERVE: (0, -1), Action.RELEASE: (0, 1)}
        undo |= {Action.MAP: (0, -1), Action.UNMAP: (0, 1)}
        live, held = undo.get(Action(entry["action"]), (0, 0))
        allocated.append(allocated[-1] + live * int(entry["nbytes"]))
        reserved.append(reserved[-1] + held * int(entry["nbytes"]))
    return allocated[::-1], reserved[::-1]


@given(steps, st.floats(0, 1), st.booleans())
def test_curves_are_the_slow_ones_however_much_is_lost(
    steps: list[tuple[int, int]], lost: float, growing: bool
) -> None:
    snapshot = told(steps, lost, growing)
    timeline = reconstruct(snapshot)
    allocated, reserved = slowly(snapshot)
    assert timeline.allocated.tolist() == allocated
    assert timeline.reserved.tolist() == reserved
    assert timeline.peak == allocated.index(max(allocated))


@given(steps, st.floats(0, 1))
def test_what_is_live_at_a_moment_adds_up_to_the_curve(steps: list[tuple[int, int]], lost: float) -> None:
    timeline = reconstruct(told(steps, lost))
    for moment in range(timeline.moments):
        live = timeline.allocations.live_at(moment)
        assert timeline.allocations.nbytes[live].sum() == timeline.allocated[moment]


def test_a_give_ends_the_take_before_it_at_its_address() -> None:
    scene = Scene()
    for _ in range(2):
        block = scene.take(512)
        scene.tick(700)
        scene.give(block)
    timeline = reconstruct(scene.snapshot())
    assert timeline.allocations.start.tolist() == [2, 5]  # the first entry is the segment's
    assert timeline.allocations.end.tolist() == [3, 6]
    assert timeline.lifetimes_ns().tolist() == [700, 700]


def test_what_was_taken_before_recording_is_known_by_its_end_or_by_its_block() -> None:
    scene = Scene()
    given_back, kept = scene.take(512), scene.take(1024, scene.stack("app.py:3 keep"))
    scene.give(given_back)
    timeline = reconstruct(scene.snapshot(lost=3))
    held = timeline.allocations
    assert sorted(zip(held.nbytes.tolist(), held.stack.tolist(), strict=True)) == [(512, NEVER_SEEN), (1024, 1)]
    assert held.start.tolist() == [0, 0]
    assert timeline.allocated.tolist() == [1536, 1024, 1024]
    assert kept in scene.blocks
    assert timeline.lifetimes_ns().tolist() == [-1, -1]


def test_pages_are_reserved_while_they_are_there() -> None:
    scene = Scene(growing=True)
    block = scene.take(512)
    scene.give(block)
    scene.shrink()
    scene.note(Action.LOOK, 0, 0)
    timeline = reconstruct(scene.snapshot())
    assert timeline.reserved.tolist() == [0, *[64 * MIB] * 4, 0, 0]
    assert timeline.allocated.tolist() == [0, 0, 512, 0, 0, 0, 0]


def test_the_final_state_wins_over_a_history_with_gaps() -> None:
    """Recording was off while the block was given back: it cannot count for ever."""
    scene = Scene()
    block = scene.take(4096)
    scene.give(block)
    del scene.entries[-2:]
    scene.tick()
    scene.take(512)
    timeline = reconstruct(scene.snapshot())
    assert timeline.allocated.tolist() == [0, 0, 4096, 512]


def test_without_a_history_there_is_one_moment() -> None:
    scene = Scene()
    scene.take(4096)
    timeline = reconstruct(scene.snapshot(recorded=False))
    assert timeline.allocated.tolist() == [4096]
    assert timeline.reserved.tolist() == [64 * MIB]
    assert timeline.time_ns.tolist() == [START]


def test_nothing_at_all() -> None:
    timeline = reconstruct(Scene().snapshot())
    assert timeline.allocated.tolist() == timeline.reserved.tolist() == [0]


def test_a_long_run_adds_up() -> None:
    snapshot = long_run(100_500, 40)
    timeline = reconstruct(snapshot)
    assert timeline.allocated[-1] == snapshot.blocks["requested"].sum() > 0
    assert np.all(timeline.allocated >= 0)
