from __future__ import annotations

import pytest
from support.annotated_history import START, annotated

from forebay.snapshot.analysis.spans import Kind, Span, lanes, named_steps, range_paths, spans, step_stem
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.formats import torch_pickle

MS = 1_000_000


def read(value):
    return torch_pickle.snapshots(value)[0]


def marked(*marks, device="cuda:0"):
    """Return the spans of a history of two steps with these marks alone: stage, name, ms, and a device."""
    value = annotated(2)
    value["external_annotations"] = [
        {"stage": stage, "name": name, "time_us": START + 1000 * at, "device": (*rest, 0)[0]}
        for stage, name, at, *rest in marks
    ]
    return [span for span in spans(read(value)) if span.kind == Kind.RANGE]


def test_ranges_are_found_with_their_entries():
    snapshot = read(annotated(2))
    found = {(span.name, span.kind): span for span in spans(snapshot)}
    first = found["ProfilerStep#0", Kind.RANGE]
    assert (first.begin, first.end) == (1, 8)  # after the segment; three allocations, and two frees of two entries
    assert first.whole
    assert [span.name for span in spans(snapshot)][:3] == ["ProfilerStep#0", "forward", '{"phase":"forward"}']
    timeline = reconstruct(snapshot)
    assert timeline.allocated[[first.begin, first.end]].tolist() == [0, 1 << 20]


def test_ranges_of_one_name_may_be_nested():
    found = marked(("START", "a", 2), ("START", "a", 3), ("END", "a", 4), ("END", "a", 6))
    assert [((span.begin_ns - START * 1000) // MS, (span.end_ns - START * 1000) // MS) for span in found] == [
        (2, 6),
        (3, 4),
    ]


def test_range_without_start_or_end_reaches_the_edge_of_the_history():
    early, late = marked(("END", "early", 9), ("START", "late", 12))
    assert (early.name, early.begin, early.whole) == ("early", 0, False)
    assert (late.name, late.end, late.whole) == ("late", 18, False)


def test_ranges_of_the_device_come_before_those_of_others():
    both = (("START", "here", 2, 0), ("END", "here", 3, 0), ("START", "there", 2, 1), ("END", "there", 3, 1))
    assert [span.name for span in marked(*both)] == ["here"]
    assert [span.name for span in marked(*both[2:])] == ["there"]  # the thread had another device as current


def test_runs_of_metadata_and_compilations_are_spans():
    value = annotated(1)
    trace = value["device_traces"][0]
    trace[2] |= {"compile_context": "0/1"}
    found = [(span.name, span.kind) for span in spans(read(value)) if span.kind != Kind.RANGE]
    assert found == [('{"phase":"forward"}', Kind.METADATA), ("compile 0/1", Kind.COMPILE)]


def test_history_without_times_has_no_spans():
    value = annotated(1)
    for entry in value["device_traces"][0]:
        entry["time_us"] = 0
    assert spans(read(value)) == []


@pytest.mark.parametrize("wrong", [[{"stage": "START", "name": 3, "time_us": 5}], [{"stage": "START"}], "text", None])
def test_marks_of_another_schema_are_left_out(wrong):
    value = annotated(1)
    value["external_annotations"] = wrong
    assert [span for span in spans(read(value)) if span.kind == Kind.RANGE] == []


def span(name, begin, end):
    return Span(name, Kind.RANGE, begin, end, begin * 10, end * 10)


def test_steps_are_the_profilers_before_others():
    profiler = [span(f"ProfilerStep#{n}", 10 * n, 10 * n + 9) for n in range(3)]
    layers = [span("layer", 2 * n, 2 * n + 1) for n in range(15)]
    assert named_steps([*profiler, *layers], 31) == profiler
    assert named_steps(layers[:4], 31) == []  # a small part of the history, and no word for a step
    assert [each.name for each in named_steps([span("iter", 0, 2), span("iter", 3, 4)], 100)] == ["iter", "iter"]


def test_one_step_is_enough_if_its_name_has_a_number():
    assert len(named_steps([span("ProfilerStep#1", 0, 2)], 3)) == 1
    assert named_steps([span("step", 0, 2)], 3) == []  # such as optimizer.step


def test_overlapping_ranges_are_no_steps():
    assert named_steps([span("step 1", 0, 20), span("step 2", 10, 30)], 31) == []


def test_numbers_are_cut_from_names():
    assert [step_stem(name) for name in ("ProfilerStep#3", "epoch 12", "layer.7", "forward", "12")] == [
        "ProfilerStep", "epoch", "layer", "forward", "12",
    ]  # fmt: skip


def test_lanes_do_not_overlap():
    found = [span("a", 0, 10), span("b", 0, 4), span("c", 4, 8), span("d", 5, 6), span("e", 12, 14)]
    assert [[each.name for each in lane] for lane in lanes(found, 2)] == [["a", "e"], ["b", "c"]]
    assert [[each.name for each in lane] for lane in lanes(found, 9)] == [["a", "e"], ["b", "c"], ["d"]]


def test_entries_know_the_ranges_around_them():
    codes, paths = range_paths([span("a;b", 1, 5), span("c", 2, 4), span("d", 5, 6)], 8)
    assert [paths[code] for code in codes.tolist()] == ["", "a:b", "a:b;c", "a:b;c", "a:b", "d", "", ""]
    assert range_paths([], 2)[0].tolist() == [0, 0]
