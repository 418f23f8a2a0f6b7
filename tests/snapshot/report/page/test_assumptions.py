"""The list of assumed values on the page."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.report_pages import EVIL, render
from support.snapshot_scenes import training

from forebay.snapshot.formats.known_notes import assumptions_of

LINE = {"line": "train.py:3: loss.item()", "text": "False of isnan", "times": 1200}


def page(noted):
    snapshot = training()
    return render(replace(snapshot, notes={**snapshot.notes, "assumptions": noted}))


def test_each_line_is_listed_once():
    text = page([LINE, {**LINE, "line": "train.py:4: x", "times": 1}])
    assert '<td class="path">train.py:3: loss.item()</td><td>False of isnan</td><td>1,200 times</td>' in text
    assert "<td>once</td>" in text


def test_page_without_assumptions_has_no_list():
    assert 'aria-label="Assumed values"' not in render(training())


def test_long_and_hostile_texts_are_short_and_harmless():
    noted = {"line": EVIL + "x" * 100_000, "text": EVIL + "y" * 100_000, "times": 1}
    text = page([noted])
    assert "xxxx…xxxx" in text
    assert "x" * 300 not in text
    assert "y" * 300 not in text
    assert "<img src=x" not in text


@pytest.mark.parametrize("noted", [None, 3, "text", [3], [{}], [{**LINE, "times": "1"}], [{**LINE, "line": None}], {}])
def test_other_values_are_ignored(noted):
    assert assumptions_of({"assumptions": noted}) == ()


def test_list_has_an_end():
    assert len(assumptions_of({"assumptions": [LINE] * 5000})) == 1000
