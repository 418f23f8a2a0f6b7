"""The stacks that a process sends: the largest ones with their callers, and refused where numbers are wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.snapshot_scenes import MIB, Scene

from forebay.observe.monitor import live_stacks as module
from forebay.observe.monitor.live_stacks import LiveStacks, live_stacks


def scene() -> Scene:
    made = Scene()
    for line in (1, 2, 3):
        for _ in range(line):
            made.allocate(line * MIB, made.stack("a.py:9 main", "b.py:8 step", f"c.py:{line} f"))
    made.allocate(MIB, made.stack("a.py:9 main"))
    made.allocate(MIB)  # without a stack
    made.free(made.allocate(MIB, made.stack("freed.py:1 f")))
    return made


def frames_of(found: LiveStacks) -> list[tuple[list[str], int, int]]:
    snapshot, live = found.snapshot("cpu")
    return [
        ([f"{frame.file}:{frame.line} {frame.name}" for frame in snapshot.stack(row)], nbytes >> 20, blocks)
        for row, nbytes, blocks in live.tolist()
    ]


def test_stacks_are_equal_after_sending():
    assert frames_of(live_stacks(scene().snapshot(), 100)) == [
        (["c.py:3 f", "b.py:8 step", "a.py:9 main"], 9, 3),
        (["c.py:2 f", "b.py:8 step", "a.py:9 main"], 4, 2),
        (["a.py:9 main"], 1, 1),
        (["c.py:1 f", "b.py:8 step", "a.py:9 main"], 1, 1),
    ]


def test_largest_stacks_are_sent_and_the_others_counted():
    found = live_stacks(scene().snapshot(), 2)
    assert [nbytes for _, nbytes, _ in frames_of(found)] == [9, 4]
    assert (found.other_bytes, found.other_blocks) == (2 * MIB, 2)
    assert "freed.py" not in found.strings


@pytest.mark.parametrize(("name", "value"), [("_MAX_ROWS", 3), ("_MAX_CHARACTERS", 20)])
def test_reply_is_bounded(monkeypatch, name, value):
    monkeypatch.setattr(module, name, value)
    found = live_stacks(scene().snapshot(), 100)
    assert [nbytes for _, nbytes, _ in frames_of(found)] == [9]
    assert (found.other_bytes, found.other_blocks) == (6 * MIB, 4)


def test_nothing_live_is_empty():
    assert live_stacks(Scene().snapshot(), 100) == LiveStacks()
    assert live_stacks(scene().snapshot(), 0).live == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"frames": (0, 9, 1)}, {"frames": (9, 0, 1)}, {"frames": (0, 0, 1 << 32)}, {"tree": (1, 0)}, {"tree": (0, 9)},
        {"live": (9, 1, 1)}, {"live": (1, (1 << 63) - 1, 1)},
    ],
)  # fmt: skip
def test_numbers_that_refer_to_nothing_are_refused(wrong):
    right = LiveStacks(("a.py", "f"), (0, 1, 7), (0, 0), (1, 10, 2))
    assert frames_of(right) == [(["a.py:7 f"], 0, 2)]
    with pytest.raises(ValueError, match="rows that do not exist, or are too large"):
        replace(right, **wrong).snapshot("cpu")
