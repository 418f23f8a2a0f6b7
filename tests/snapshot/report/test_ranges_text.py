from __future__ import annotations

from support.annotated_history import annotated

from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.report.explanation import explanation
from forebay.snapshot.report.explanation_text import paragraphs
from forebay.snapshot.report.ranges_text import place_sentence, ranges_paragraph


def explained(value):
    (snapshot,) = torch_pickle.snapshots(value)
    return explanation(snapshot, replay=False)


def test_table_has_the_memory_of_the_ranges():
    rows = ranges_paragraph(explained(annotated(4))).rows
    assert rows[0] == ("ProfilerStep", "4", "16.00 MiB", "ProfilerStep#3", "52.00 MiB", "+1.00 MiB")
    assert [row[0] for row in rows] == ["ProfilerStep", "forward", '{"phase":"forward"} (user_metadata)', "backward"]


def test_growth_names_the_marked_steps():
    (text,) = [each.sentences[0] for each in paragraphs(explained(annotated(4))) if each.heading == "Growth"]
    assert text == "4 steps that the program marked (“ProfilerStep”), of about 4 allocations, are compared."


def test_only_the_largest_of_many_ranges_are_listed():
    value = annotated(2)
    marks = value["external_annotations"]
    first, last = marks[0]["time_us"], marks[-1]["time_us"]
    for number in range(20):
        for stage, at in (("START", first), ("END", last)):
            marks.append({"stage": stage, "name": f"{'x' * number}y", "device": 0, "time_us": at})
    found = ranges_paragraph(explained(value))
    assert len(found.rows) == 8
    assert found.sentences == ("The 8 of 24 with the highest peaks:",)


def test_moment_outside_of_ranges_has_no_sentence():
    value = annotated(2)
    value["external_annotations"] = []
    for entry in value["device_traces"][0]:
        entry["user_metadata"] = ""
    assert place_sentence(explained(value)) == []
    assert ranges_paragraph(explained(value)).rows == ()
