"""The part of a history that a program records while a command records the whole of it."""

from __future__ import annotations

import pytest

import forebay
from forebay.records.model import Action
from forebay.runtime.devices.current import opened_for
from forebay.runtime.history import recording

SIZE = 4 << 20


@pytest.fixture
def pool():
    """The allocator of an emulated device, whose whole history of eight entries is recorded."""
    with forebay.emulate("cuda"):
        found = opened_for("cuda").allocator
        recording.start_whole(found, 8)
        yield found


def actions(taken):
    return [Action(each).name for each in taken.trace["action"].tolist()]


def stacks(taken):
    """Return for each live block of the large ones whether it has a stack."""
    return [bool(each) for each in taken.blocks["stack"][taken.blocks["state"] == 1].tolist()]


def allocate():
    return forebay.allocate(SIZE, "cuda")


def test_windows_are_those_of_the_program(pool):
    before = allocate()
    assert (actions(forebay.memory.snapshot("cuda")), pool.program_records) == ([], False)
    forebay.memory.record_history(device="cuda")
    inside = allocate()
    assert actions(forebay.memory.snapshot("cuda")) == ["ALLOC"]
    forebay.memory.record_history(None, device="cuda")
    after = allocate()
    assert actions(forebay.memory.snapshot("cuda")) == []
    assert [*map(bool, (before, inside, after))] == [True] * 3
    assert sorted(stacks(forebay.memory.snapshot("cuda"))) == [False, False, True]


def test_lost_entries_count_as_those_of_the_program_if_it_recorded_them(pool):
    forebay.memory.record_history(4, device="cuda")
    kept = [allocate() for _ in range(20)]
    taken = forebay.memory.snapshot("cuda")
    assert (len(taken.trace), len(kept)) == (4, 20)
    assert taken.lost + len(taken.trace) == 20 + len(taken.segments)
    assert all(stacks(taken))


def test_lost_entries_before_the_recording_have_no_stacks(pool):
    kept = [allocate() for _ in range(20)]
    forebay.memory.record_history(device="cuda")
    assert not any(stacks(forebay.memory.snapshot("cuda")))
    assert len(kept) == 20


def test_skipped_actions_and_other_contexts_are_changed_only_for_the_program(pool):
    forebay.memory.record_history(device="cuda", skip_actions=["alloc"], context="all")
    block = allocate()
    block.free()
    assert actions(forebay.memory.snapshot("cuda"))[-2:] == ["FREE_REQUESTED", "FREE_COMPLETED"]
    assert "ALLOC" not in actions(forebay.memory.snapshot("cuda"))
    forebay.memory.record_history(device="cuda", context=None)
    allocate()
    taken = forebay.memory.snapshot("cuda")
    assert actions(taken)[0] == "ALLOC"
    assert not taken.trace["stack"].any()
