"""The page of differences of operators is what the tool writes from the recorded outcomes."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def differences(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "tools")
    import operator_differences

    return operator_differences


@pytest.fixture
def data(differences):
    return json.loads(differences.DATA.read_text())


def test_page_is_that_of_the_recorded_outcomes(differences, data):
    assert differences.PAGE.read_text() == differences.page_of(data)


def test_difference_without_a_cause_is_refused(differences):
    changed = {"torch": "2.15", "operators": {"add": {"outcomes": "EDE", "sizes": [[4], [8]]}}}
    with pytest.raises(LookupError, match="add differs: add its cause"):
        differences.page_of(changed)


def test_most_operators_are_equal(data):
    letters = "".join(entry["outcomes"] for entry in data["operators"].values())
    assert letters.count("E") > 0.9 * (letters.count("E") + letters.count("D"))
