from __future__ import annotations

import pytest
from support.annotated_history import MIB, annotated

from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.report.explanation import Cause, explanation
from forebay.snapshot.report.explanation_text import paragraphs
from forebay.snapshot.report.selection import BadSelection, moment_of, select_between, select_moment, select_step


def read(value):
    (snapshot,) = torch_pickle.snapshots(value)
    return snapshot, reconstruct(snapshot)


def test_step_is_chosen_by_the_number_in_its_name():
    snapshot, timeline = read(annotated(3, first=7))
    assert select_step(snapshot, timeline, 8)[1:] == select_step(snapshot, timeline, 8)[1:]
    assert select_step(snapshot, timeline, 8).name == "the step “ProfilerStep#8”"
    with pytest.raises(BadSelection, match="the steps 7 to 9, marked as “ProfilerStep”"):
        select_step(snapshot, timeline, 0)


def test_steps_without_numbers_are_counted():
    snapshot, timeline = read(annotated(3, name="train step"))
    assert select_step(snapshot, timeline, 0)[1:] == (1, 8)
    with pytest.raises(BadSelection, match="the steps 0 to 2"):
        select_step(snapshot, timeline, 3)


def test_history_without_steps_is_said():
    value = annotated(2)
    value["external_annotations"] = []
    with pytest.raises(BadSelection, match="has no steps: the program marked none"):
        select_step(*read(value), 0)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("0", 0),
        ("3", 3),
        ("entry 3", 3),
        ("0s", 1),
        ("0ms", 1),
        ("2.9ms", 1),
        ("3ms", 2),
        ("0.003 s", 2),
        ("3000us", 2),
    ],
)
def test_moments_are_entries_or_times(text, moment):
    """The first allocation is 3 ms after the first entry, which reserves the segment."""
    _, timeline = read(annotated(2))
    assert moment_of(timeline, text) == moment


@pytest.mark.parametrize(
    ("text", "said"),
    [("x", "is no moment"), ("", "is no moment"), ("-1", "is no moment"), ("1e9", "is no moment"),
     ("s", "is no moment"), ("99", "there is no entry 99: the history has 18"), ("9h", "after the end"),
     ("9" * 15 + "0", "is no moment")],
)  # fmt: skip
def test_other_texts_are_refused(text, said):
    _, timeline = read(annotated(2))
    with pytest.raises(BadSelection, match=said):
        moment_of(timeline, text)


def test_range_may_not_be_reversed():
    _, timeline = read(annotated(2))
    assert select_between(timeline, "2", "5")[1:] == (2, 5)
    with pytest.raises(BadSelection, match="'2' is before '5'"):
        select_between(timeline, "5", "2")


def test_explanation_is_of_the_chosen_step():
    snapshot, _ = read(annotated(4))
    found = explanation(snapshot, replay=False, select=lambda timeline: select_step(snapshot, timeline, 1))
    assert (found.cause, found.use.live) == (Cause.CHOSEN, 14 * MIB + 512)
    assert (found.chosen.first_bytes, found.chosen.last_bytes) == (MIB, 2 * MIB)
    assert found.chosen.changes == (("net.py:30 step", MIB),)
    assert found.inside == ("ProfilerStep#1",)
    first, second, *_ = paragraphs(found)
    assert (
        first.sentences[0] == "In the step “ProfilerStep#1”, the most memory was live after entry 12 of 47: 14.00 MiB."
    )
    assert second.rows == (("net.py:30 step", "+1.00 MiB"),)


def test_explanation_is_of_the_chosen_moment():
    snapshot, _ = read(annotated(4))
    found = explanation(snapshot, replay=False, select=lambda timeline: select_moment(timeline, "2"))
    assert (found.moment, found.use.live, found.inside) == (
        2,
        8 * MIB,
        ("ProfilerStep#0", "forward", '{"phase":"forward"}'),
    )
    texts = [sentence for paragraph in paragraphs(found) for sentence in paragraph.sentences]
    assert texts[0] == "After entry 2, 8.00 MiB were live."
    assert texts[2] == 'The program was in “ProfilerStep#0” > “forward” > “{"phase":"forward"}”.'


def test_error_in_the_chosen_part_is_explained():
    value = annotated(3)
    trace = value["device_traces"][0]
    trace.insert(10, trace[9] | {"action": "oom", "device_free": 0, "size": 1 << 40})
    snapshot, _ = read(value)
    inside = explanation(snapshot, replay=False, select=lambda timeline: select_step(snapshot, timeline, 1))
    outside = explanation(snapshot, replay=False, select=lambda timeline: select_step(snapshot, timeline, 0))
    assert (inside.request is not None, outside.request) == (True, None)
    assert outside.cause == Cause.CHOSEN
