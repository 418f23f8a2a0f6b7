"""Replays of changed histories, compared with runs of programs that are written so."""

from __future__ import annotations

import numpy as np
import pytest
from support.changed_programs import Step
from support.snapshot_programs import MIB

from forebay.records.model import Action
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.replay.changed_history import Program
from forebay.snapshot.replay.changes import parse_changes
from forebay.snapshot.replay.engine import History


def program_of(snapshot):
    failed = np.flatnonzero(snapshot.trace["action"] == Action.OOM)
    entry = int(failed[-1]) if len(failed) else None
    timeline = reconstruct(snapshot)
    moment = timeline.peak if entry is None else entry + 1
    return Program(snapshot, History(snapshot), timeline, moment, entry)


def replayed(snapshot, text, memory=None):
    program = program_of(snapshot)
    changed = program.changed(parse_changes(text))
    return changed, changed.history.run(None, memory)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("layer size=0.5", {"layer_mib": 30}),
        ("layer size=1.25", {"layer_mib": 75}),
        ("layer blocks=7", {"layers": 7}),
        ("layer blocks=0", {"layers": 0}),
        ("weight size=2; logits size=1/3", {"weight_mib": 60, "logits_mib": 50}),
        ("logits freed-before=gradient", {"keeps_logits": False}),
        ("gradient size=0.1", {"gradient_mib": 9}),
    ],
)
def test_replay_reserves_what_the_changed_program_does(text, changes):
    """Both run to the end on a large device, as the request that failed is then made by both."""
    snapshot = Step(total_mib=4000).snapshot()
    _, outcome = replayed(snapshot, text, 4000 * MIB)
    gpu, ended = Step(total_mib=4000, **changes).run()
    assert (ended, outcome.refused) == (True, ())
    assert outcome.peak_reserved == gpu.peak("reserved_bytes")
    assert outcome.peak_allocated == gpu.peak("allocated_bytes")


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("layer blocks=12", False), ("layer blocks=11", True), ("layer size=0.95", False), ("layer size=0.9", True),
        ("logits freed-before=gradient", True), ("logits freed-before=error", True),
        ("layer freed-before=weight", False),
    ],
)  # fmt: skip
def test_failed_request_fits_where_the_changed_program_does(text, fits):
    snapshot = Step().snapshot()
    _, outcome = replayed(snapshot, text, 1200 * MIB)
    assert (outcome.refused == (), outcome.stopped) == (fits, False)


def test_numbers_are_those_at_the_error():
    snapshot = Step().snapshot()
    whole, _ = replayed(snapshot, "layer size=0.5")
    assert (whole.blocks, whole.nbytes // MIB, whole.blocks_left, whole.bytes_left // MIB) == (12, 720, 12, 360)
    few, _ = replayed(snapshot, "layer blocks=5")
    assert (few.blocks, few.blocks_left, few.bytes_left // MIB, few.request) == (12, 5, 300, None)
    freed, _ = replayed(snapshot, "logits freed-before=error")
    assert (freed.blocks, freed.blocks_left, freed.bytes_left) == (1, 0, 0)
    request, _ = replayed(snapshot, "gradient size=0.5")
    assert (request.blocks, request.bytes_left // MIB, request.request // MIB) == (2, 90, 45)


def test_blocks_that_the_program_frees_earlier_are_freed_then():
    snapshot = Step(layers=2).snapshot()
    program = program_of(snapshot)
    changed = program.changed(parse_changes(f"layer freed-before={len(snapshot.trace)}"))
    for column, recorded in zip(changed.history.columns, program.history.columns, strict=True):
        assert np.array_equal(column, recorded)


def test_most_blocks_at_once_count_only_those_that_are_live():
    """One block after the other is live: a limit of one leaves out none of them."""
    snapshot = Step(layers=1).snapshot()
    program = program_of(snapshot)
    changed = program.changed(parse_changes("layer blocks=1"))
    assert len(changed.history.columns[0]) == len(program.history.columns[0])


def test_older_blocks_shrink_in_their_place():
    """The segments of older blocks remain reserved, so a smaller weight leaves a gap of 15 MiB in each."""
    snapshot = Step(recorded_weights=False).snapshot()
    older = program_of(snapshot).history.initial_state.blocks
    assert [block.nbytes // MIB for block in older] == [30] * 4
    changed, outcome = replayed(snapshot, "weight size=0.5", 1200 * MIB)
    assert [block.nbytes // MIB for block in changed.history.initial_state.blocks] == [15] * 4
    assert [block.address for block in changed.history.initial_state.blocks] == [block.address for block in older]
    assert (outcome.refused != (), outcome.from_recorded_state) == (True, True)
    larger, _ = replayed(snapshot, "weight size=2", 1200 * MIB)
    assert (larger.kept, larger.history.initial_state.blocks) == (4, older)
    fewer, _ = replayed(snapshot, "weight size=0", 1200 * MIB)
    assert (fewer.history.initial_state.blocks, fewer.blocks_left) == ([], 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nosuch size=1", "no site of cuda:0 matches 'nosuch'; those with the most memory: .* layer"),
        ("layer freed-before=nosuch", "no site of cuda:0 matches 'nosuch'"),
        ("layer freed-before=9999", "freed-before=9999: the history of cuda:0 has [0-9]+ entries"),
        ("layer freed-before=0", "freed-before=0: the history of cuda:0 has [0-9]+ entries"),
    ],
)
def test_change_that_names_nothing_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        program_of(Step().snapshot()).changed(parse_changes(text))


def test_backward_pass_and_error_are_missing_in_some_histories():
    ended = program_of(Step(layers=2, gradient_mib=1).snapshot())
    with pytest.raises(ValueError, match="memory did not run out on cuda:0"):
        ended.changed(parse_changes("layer freed-before=error"))
