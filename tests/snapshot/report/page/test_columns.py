"""Columns of the page: what is added is read back, and what JavaScript cannot hold is limited."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.page_columns import decode

from forebay.snapshot.report.page.columns import Columns

LARGEST = 1 << 52


@given(st.lists(st.lists(st.integers(-LARGEST, LARGEST)), max_size=4))
def test_columns_are_read_back(lists):
    columns = Columns()
    for number, values in enumerate(lists):
        columns.add(f"column {number}", values)
    found = decode(*columns.encoded())
    assert [found[f"column {number}"].tolist() for number in range(len(lists))] == lists


@given(st.lists(st.integers(0, LARGEST), min_size=1))
def test_repetitive_column_is_a_table_and_its_rows(values):
    columns = Columns()
    columns.add_repetitive("size", np.array(values))
    found = decode(*columns.encoded())
    assert found["size.table"].tolist() == sorted(set(values))
    assert found["size.table"][found["size"]].tolist() == values


def test_numbers_beyond_javascript_are_limited():
    columns = Columns()
    columns.add("unsigned", np.array([0, 1 << 53, (1 << 64) - 1], np.uint64))
    columns.add("signed", np.array([-(1 << 63), 7, (1 << 63) - 1], np.int64))
    found = decode(*columns.encoded())
    assert found["unsigned"].tolist() == [0, LARGEST, LARGEST]
    assert found["signed"].tolist() == [-LARGEST, 7, LARGEST]


def test_repetition_compresses_well():
    columns = Columns()
    columns.add("time", np.arange(100_000) * 1000)
    assert len(columns.encoded()[1]) < 1000
