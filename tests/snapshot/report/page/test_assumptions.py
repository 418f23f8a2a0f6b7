"""The list of assumed values on the page."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from support.browser_pages import Report
from support.report_pages import BROWSER, EVIL, render
from support.snapshot_scenes import training

from forebay.snapshot.formats.known_notes import assumption_check_of, assumptions_of

LINE = {"line": "train.py:3: loss.item()", "text": "False of isnan", "times": 1200}


def page(noted, **notes):
    snapshot = training()
    return render(replace(snapshot, notes={**snapshot.notes, "assumptions": noted, **notes}))


def test_each_line_is_listed_once():
    text = page([LINE, {**LINE, "line": "train.py:4: x", "times": 1}])
    assert '<td class="path">train.py:3: loss.item()</td><td>False of isnan</td><td>1,200 times</td>' in text
    assert "<td>once</td>" in text


def test_answer_of_the_check_follows_the_list():
    sentences = ["The peak depends on them.", f"{EVIL}train.py:3: no difference"]
    text = page([LINE], assumption_check=sentences)
    assert '<li class="path">The peak depends on them.</li>' in text
    assert text.index("1,200 times") < text.index("train.py:3: no difference")
    assert "<img src=x" not in text
    assert 'aria-label="Check"' not in page([LINE])


@pytest.mark.parametrize("noted", [None, 3, "text", [3], [None, {}]])
def test_other_answers_are_ignored(noted):
    assert assumption_check_of({"assumption_check": noted}) == ()


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


@pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")
def test_list_fits_its_window(tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    noted = [{**LINE, "line": f"/home/ada/{'project/' * 9}train.py:{number}: {'x' * 900}"} for number in range(3)]
    snapshot = replace(training(), notes={"assumptions": noted, "assumption_check": [noted[0]["line"]]})
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        for width, scheme in product((400, 1400), ("light", "dark")):
            options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
            report = Report.open(browser, tmp_path, [snapshot], **options)
            assert report.page.evaluate("document.documentElement.scrollWidth") <= width
            area = report.page.query_selector(".assumptions .scroll")
            assert area.evaluate("(area) => area.scrollWidth <= area.clientWidth")
            cells = report.page.query_selector_all(".assumptions tbody td:last-child")
            assert [each.inner_text() for each in cells] == ["1,200 times"] * 3
            assert report.problems == []
            report.page.close()
        browser.close()
