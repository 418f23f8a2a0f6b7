"""The generator of synthetic histories: exact length, consistent, replayed as recorded, and fast enough for tests."""

from __future__ import annotations

import time

import numpy as np
import pytest
from support.synthetic_history import synthetic

from forebay.records.model import Action
from forebay.snapshot.formats import native
from forebay.snapshot.replay import engine


@pytest.mark.parametrize("out_of_memory", [False, True])
@pytest.mark.parametrize("events", [1_000, 20_000])
def test_every_block_is_placed_as_recorded(events, out_of_memory):
    found = synthetic(events, seed=events, out_of_memory=out_of_memory)
    native.check(found)
    assert len(found.trace) == events
    assert (found.lost > 0) == out_of_memory
    assert (found.trace["action"][-1] == Action.OOM) == out_of_memory
    result = engine.check(found)
    assert result.equal, result


def test_equal_arguments_give_equal_histories():
    first, second, other = synthetic(2_000, 1), synthetic(2_000, 1), synthetic(2_000, 2)
    assert first.trace.tobytes() == second.trace.tobytes() != other.trace.tobytes()


def test_million_entries_are_made_in_two_seconds():
    began = time.process_time()
    found = synthetic(1_000_000)
    assert time.process_time() - began < 2
    assert len(found.trace) == 1_000_000
    assert len(np.unique(found.trace["stack"])) > 200
    assert len(found.notes["pools"]) == 1
    assert len(np.unique(found.trace["queue"])) == 3
