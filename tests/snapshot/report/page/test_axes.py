"""Ticks of axes: few, round, with units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.snapshot.report.page import axes


@given(st.integers(0, 1 << 62))
def test_ticks_are_few_sorted_and_distinct(top):
    for ticks in (axes.byte_ticks(top), axes.time_ticks(top)):
        assert 1 <= len(ticks) <= 9
        assert [value for value, _ in ticks] == sorted({value for value, _ in ticks})
        assert len({label for _, label in ticks}) == len(ticks)


@pytest.mark.parametrize(
    ("span", "labels"),
    [
        (0, ["0 ns"]),
        (3_000_000, ["0 ms", "0.5 ms", "1 ms", "1.5 ms", "2 ms", "2.5 ms", "3 ms"]),
        (45 * 10**9, ["0 s", "10 s", "20 s", "30 s", "40 s"]),
        (4000 * 10**9, ["0 min", "10 min", "20 min", "30 min", "40 min", "50 min", "60 min"]),
    ],
)
def test_time_ticks_have_units(span, labels):
    assert [label for _, label in axes.time_ticks(span)] == labels
