"""The HTML report: deterministic, escaped, well-formed for every history, with curves that keep their peaks."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.report_pages import SCENARIOS, render, snapshot_of
from support.snapshot_scenes import long_run, training

from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.report.page import axes, chart


def data(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1])


class Tags(HTMLParser):
    """Parser that collects the elements and checks that each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen, self.open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in {"meta", "input"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_page_is_well_formed(scenario):
    text = render(snapshot_of(scenario))
    tags = Tags(text)
    assert tags.open == []
    assert "$" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not any("nan" in value for tag, attributes in tags.seen if tag == "path" for value in attributes.values())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_page_is_deterministic(scenario):
    assert render(snapshot_of(scenario)) == render(snapshot_of(scenario))


def test_memory_freed_after_its_allocation_left_the_ring_is_named():
    """Its site is neither live at the peak nor among the sites that allocated during the history."""
    found = data(render(snapshot_of("older peak")))
    assert sorted(found["labels"]) == ["(before recording)", "app.py:2 g"]
    assert sum(layer[0] for layer in found["layers"]) == 3 << 20


def test_text_is_escaped():
    text = render(snapshot_of("evil"))
    tags = Tags(text)
    assert text.encode("utf-8")
    assert [tag for tag, _ in tags.seen].count("script") == 2
    assert not any(tag == "img" for tag, _ in tags.seen)
    assert not any(name.startswith("on") for _, attributes in tags.seen for name in attributes)
    assert "\u202e" not in text


def test_page_has_no_external_references():
    tags = Tags(render(training()))
    assert not any({"src", "href", "action", "data"} & attributes.keys() for _, attributes in tags.seen)
    (policy,) = (a["content"] for _, a in tags.seen if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    assert "'unsafe-inline'" not in policy.partition("script-src")[2]


def test_page_shows_peak_oom_and_sites():
    text = render(snapshot_of("training"))
    for words in ("peak 2.94 GiB", "out of memory: 200.00 MiB", "attention.py:58", "58 segments", "History.append"):
        assert words in text


def test_layers_add_up_to_allocated_bytes():
    snapshot = training()
    timeline, drawn = reconstruct(snapshot), data(render(snapshot))
    assert np.sum(drawn["layers"], axis=0).tolist() == timeline.allocated[drawn["moment"]].tolist()
    assert timeline.peak in drawn["moment"]


@pytest.mark.slow
def test_page_of_a_million_entries_is_small():
    snapshot = long_run()
    text = render(snapshot)
    assert len(text) < 2_000_000
    drawn, timeline = data(text), reconstruct(snapshot)
    assert 500 < len(drawn["moment"]) <= 2100
    assert np.sum(drawn["layers"], axis=0).tolist() == timeline.allocated[drawn["moment"]].tolist()


@given(st.lists(st.integers(-5, 5), min_size=1), st.data())
def test_extremes_are_found_in_each_bucket(values, more):
    curve = np.array(values)
    starts = np.array(sorted(more.draw(st.sets(st.integers(0, len(values) - 1))) | {0}))
    found = set(chart.extremes(curve, starts).tolist())
    for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
        kept = [values[at] for at in found if start <= at < end]
        assert (min(kept), max(kept)) == (min(values[start:end]), max(values[start:end]))


@given(st.integers(0, 1 << 62))
def test_ticks_are_few_sorted_and_distinct(top):
    for ticks in (axes.byte_ticks(top), axes.count_ticks(top), axes.time_ticks(top)):
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
