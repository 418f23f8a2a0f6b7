"""Named ranges of a program on the report page, in a real browser: bands below the chart, and their table."""

from __future__ import annotations

import numpy as np
import pytest
from support.annotated_history import annotated
from support.browser_pages import LEFT, RIGHT
from support.report_pages import BROWSER
from support.snapshot_scenes import MIB, training

from forebay.snapshot.analysis.spans import spans
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.formats import torch_pickle

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")


@pytest.mark.parametrize("axis", ["time", "entry"])
def test_click_on_a_band_shows_its_range(show, axis):
    (snapshot,) = torch_pickle.snapshots(annotated(4))
    report = show(snapshot, address=f"#axis={axis}")
    timeline = reconstruct(snapshot)
    step = next(span for span in spans(snapshot) if span.name == "ProfilerStep#2")
    first, last = int(timeline.time_ns[0]), int(timeline.time_ns[-1])
    place = (step.begin_ns + step.end_ns - 2 * first) / 2 / (last - first)
    if axis == "entry":
        place = (step.begin + step.end) / 2 / (timeline.moments - 1)
    box = report.page.locator("article:not([hidden]) .bands canvas").bounding_box()
    x, y = box["x"] + LEFT + place * (box["width"] - LEFT - RIGHT), box["y"] + 8
    report.page.mouse.move(x, y)
    assert report.text(".bands .tip").startswith("ProfilerStep#2")
    report.page.mouse.click(x, y)
    report.settle()
    top = step.begin + int(np.argmax(timeline.allocated[step.begin : step.end + 1]))
    found = report.hash()
    # What the address leaves out has its default: the peak, and the last moment.
    assert int(found["from"]) == step.begin
    assert int(found["to"]) == step.end
    assert int(found.get("moment", timeline.peak)) == top


def test_table_has_the_memory_of_the_named_ranges(show):
    (snapshot,) = torch_pickle.snapshots(annotated(4))
    report = show(snapshot)
    rows = {name: numbers for name, *numbers in report.table("ranges")}
    assert [int(number) for number in rows["ProfilerStep"]] == [4, 16 * MIB + 1536, 52 * MIB + 3072, MIB]
    report.page.get_by_role("button", name="Show the peak inside forward", exact=True).click()
    report.settle()
    assert int(report.figures()["allocated"]) == 11 * MIB + 1536


def test_page_without_named_ranges_has_no_bands(show):
    report = show(training())
    assert report.page.locator(".bands").is_hidden()
    assert report.page.locator(".ranges").count() == 0
