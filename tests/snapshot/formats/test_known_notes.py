"""Notes of any JSON type: they are read with their known types or ignored, and no report or writer fails."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace

import pytest
from support.snapshot_scenes import training

from forebay._base.verdicts import Verdict
from forebay.snapshot.analysis.summary import summary
from forebay.snapshot.formats import known_notes, torch_writer
from forebay.snapshot.replay.recorded_heaps import recorded_settings_of
from forebay.snapshot.report import html

NAMES = ("allocator_settings", "heaps", "order", "pools", "program", "seconds", "truncated", "verdict", "watermarks")
SETTINGS = ("max_split_size", "garbage_collection_threshold", "roundup_power2_divisions", "PYTORCH_CUDA_ALLOC_CONF")
VALUES = (
    None, True, -1, 1.5, float("nan"), 10**400, "text", [], [[]], {}, {"0": "ab"}, {"0": [1, 2, 3]}, {"1": {"2": None}},
)  # fmt: skip


def notes():
    for value in VALUES:
        yield from ({name: value} for name in NAMES)
        yield from ({"allocator_settings": {name: value}} for name in SETTINGS)


@pytest.mark.parametrize("own", [*notes()], ids=str)
def test_notes_of_any_type_are_reported_and_written(tmp_path, own):
    snapshot = replace(training(steps=3), notes=own)
    recorded_settings_of(snapshot)
    assert summary(snapshot).per_second >= 0
    html.write(snapshot, io.StringIO())
    torch_writer.write([snapshot], tmp_path / "torch.pickle")
    pickle.loads((tmp_path / "torch.pickle").read_bytes())


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_only_text_is_the_reason_of_truncation(value):
    assert known_notes.truncation_of({"truncated": value}) == (value if value == "text" else "")


def test_known_values_are_returned():
    settings = {"max_split_size": 1, "expandable_segments": True, "other": 2}
    found = {
        "allocator_settings": settings, "heaps": {"longest": 4}, "pools": {"3": [5, 6], "x": [1, 2], "4": [-1, 0]},
        "program": ["a.py", "-x"], "seconds": 2, "truncated": "at the end",
    }  # fmt: skip
    assert known_notes.settings_of(found) == {"max_split_size": 1, "expandable_segments": True}
    assert known_notes.all_settings(found) == {**settings, "heaps": {"longest": 4}}
    assert known_notes.pool_ids(found) == {3: (5, 6)}
    assert known_notes.program_of(found) == ["a.py", "-x"]
    assert known_notes.seconds_of(found) == 2
    assert known_notes.truncation_of(found) == "at the end"


def test_settings_of_megabytes_are_ignored():
    assert known_notes.settings_of({"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "a:b," * 10_000}}) == {}


def test_number_of_a_pool_takes_no_table_of_that_size(tmp_path):
    snapshot = training(steps=3)
    snapshot.trace["pool"][:] = (1 << 32) - 1
    torch_writer.write([snapshot], tmp_path / "torch.pickle")
    value = pickle.loads((tmp_path / "torch.pickle").read_bytes())
    assert value["device_traces"][0][0]["pool_id"] == (0, (1 << 32) - 1)


NOTED = {"verdict": "tight", "heading": "It fits tightly", "text": ""}


@pytest.mark.parametrize(
    "changed", [{"verdict": "perhaps"}, {"verdict": ["tight"]}, {"heading": None}, {"text": 1}, {"text": "x" * 100_000}]
)
def test_verdict_has_three_known_texts(changed):
    assert known_notes.verdict_of({"verdict": NOTED}) == (Verdict.TIGHT, "It fits tightly", "")
    assert known_notes.verdict_of({"verdict": NOTED | changed}) is None
    assert known_notes.verdict_of({"verdict": "tight"}) is None
    assert known_notes.verdict_of({}) is None
