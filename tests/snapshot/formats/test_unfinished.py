"""Files of programs that have written no report, whole and damaged."""

from __future__ import annotations

import io
import random

import pytest

from forebay import memory, snapshot
from forebay.snapshot.formats import unfinished
from forebay.snapshot.formats.budget import BadSnapshot

DETAILS = {
    "device": "cpu", "capacity": 0, "taken_at_ns": 1, "lost": 0, "stats": {"allocation.all.allocated": 1}, "notes": {},
    "labels": [], "pid": 7, "seconds": 1.5,
}  # fmt: skip


@pytest.fixture
def state(fake):
    import forebay

    memory.record_history(device="fake:0")
    kept = forebay.empty(1 << 20, device="fake:0")
    taken = memory.snapshot(device="fake:0")
    tables = tuple(table.tobytes() for table in (taken.segments, taken.blocks, taken.trace))
    stacks = []
    for parent, at in taken.stacks[1:].tolist():
        file, name, line = taken.frames[at].tolist()
        stacks.append((parent, taken.strings[file], taken.strings[name], line))
    assert kept.nbytes
    return unfinished.pack(DETAILS, tables, stacks), taken


def whole(state: bytes, gap: int = 0) -> bytes:
    at = unfinished.HEADER_BYTES + gap
    return unfinished.header(at, len(state)) + bytes(gap) + state


@pytest.mark.parametrize("gap", [0, 1000])
def test_state_is_read_wherever_it_is(state, tmp_path, gap):
    packed, taken = state
    path = tmp_path / "snapshot.forebay"
    path.write_bytes(whole(packed, gap) + b"of the state before")
    (found,) = snapshot.load(path)
    assert (found.trace.tolist(), found.blocks.tolist()) == (taken.trace.tolist(), taken.blocks.tolist())
    stacks = [number for number in {*taken.trace["stack"].tolist()} if number]
    assert stacks
    assert [[*found.stack(number)] for number in stacks] == [[*taken.stack(number)] for number in stacks]
    assert "process 7 has written no report" in found.notes["truncated"]


def test_file_without_a_state_is_told_as_such():
    with pytest.raises(BadSnapshot, match="has recorded nothing yet"):
        unfinished.read(io.BytesIO(unfinished.header(0, 0)))


def test_damaged_file_is_refused_or_consistent(state):
    content = whole(state[0])
    chance = random.Random(7)
    for at in range(0, len(content), max(1, len(content) // 100)):
        with pytest.raises(BadSnapshot):
            unfinished.read(io.BytesIO(content[:at]))
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            unfinished.read(io.BytesIO(damaged))
        except BadSnapshot:
            refused += 1
    assert refused > 20
