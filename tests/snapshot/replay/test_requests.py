"""Requests of a history: the compiled loop and the steps in Python have the same results; wrong columns are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.records.model import Action
from forebay.simulate import Device
from forebay.snapshot.replay.requests import DEFERRED_FREE, RequestRows, Requests

MIB = 1 << 20
ACTIONS = [Action.ALLOC, Action.ALLOC, Action.FREE_COMPLETED, Action.FREE_REQUESTED, DEFERRED_FREE, Action.OOM,
           Action.RELEASE]  # fmt: skip
rows = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5), st.integers(1, 9 * MIB), st.integers(0, 1),
              st.sampled_from([0, 0, 0, 1, 7])),
    max_size=60,
)  # fmt: skip


def columns(found: list[tuple[int, ...]]) -> RequestRows:
    table = np.array(found, np.int64).reshape(-1, 5)
    action, address, *others = table.T
    return RequestRows.of([np.arange(len(table)), action, address << 30, *others])


def outcome(made: RequestRows, device: Device, chunk: int) -> tuple[object, ...]:
    requests = Requests(device, made)
    for begin in range(0, len(made), chunk):
        requests.replay(begin, min(begin + chunk, len(made)))
    return (
        requests.refused, requests.stopped, device.peak("allocated_bytes"), device.peak("reserved_bytes"),
        device.allocator.num_device_alloc, device.allocator.num_device_free,
    )  # fmt: skip


@given(rows)
@settings(max_examples=60)
def test_compiled_loop_and_python_have_the_same_results(found):
    made = columns(found)
    slow = Device(64 * MIB)
    slow.allocator.repeat = lambda *arguments: arguments[-1]  # no row is repeated: all are steps in Python
    assert outcome(made, Device(64 * MIB), 1000) == outcome(made, slow, 7)


def test_reused_address_frees_the_block_before():
    device = Device(64 * MIB)
    outcome(columns([(Action.ALLOC, 1, MIB, 0, 0)] * 3), device, 10)
    assert device.peak("allocated_bytes") == 2 * MIB  # the third is allocated before the second is freed


def test_wrong_columns_are_refused():
    repeat = Device(64 * MIB).allocator.repeat
    one = [np.ones(1, kind) for kind in (np.uint8, np.uint32, np.uint64, np.uint64, np.uint32)]
    with pytest.raises(IndexError, match="row 0 has the slot 1 of 1"):
        repeat([None], [None], {}, *one, 0)
    with pytest.raises(ValueError, match="different lengths"):
        repeat([None], [], {}, *one, 0)
    with pytest.raises(ValueError, match="different lengths"):
        repeat([None], [None], {}, one[0], np.ones(2, np.uint32), *one[2:], 0)
    with pytest.raises((ValueError, TypeError)):
        repeat([None], [None], {}, one[1], *one[1:], 0)
    with pytest.raises(TypeError):
        repeat(["block", None], [None, None], {}, np.full(1, 3, np.uint8), np.zeros(1, np.uint32), *one[2:], 0)
    assert repeat([None, None], [None, None], {}, *one, 5) == 5
