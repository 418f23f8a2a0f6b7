"""The page of differences of operators is what the tool writes from the recorded outcomes."""

from __future__ import annotations

import json

import operator_differences
import pytest

DATA = json.loads(operator_differences.DATA.read_text())


def test_page_is_that_of_the_recorded_outcomes():
    assert operator_differences.PAGE.read_text() == operator_differences.page_of(DATA)


def test_difference_without_a_cause_is_refused():
    changed = {"torch": "2.15", "operators": {"add": {"outcomes": "EDE", "sizes": [[4], [8]]}}}
    with pytest.raises(LookupError, match="add differs: add its cause"):
        operator_differences.page_of(changed)


def test_most_operators_are_equal():
    letters = "".join(entry["outcomes"] for entry in DATA["operators"].values())
    assert letters.count("E") > 0.9 * (letters.count("E") + letters.count("D"))
