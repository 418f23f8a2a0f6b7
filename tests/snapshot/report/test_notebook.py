"""Snapshots and summaries as notebooks display them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.markup import check_markup
from support.report_pages import EVIL, SCENARIOS, snapshot_of

from forebay.snapshot.analysis.summary import summary
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.report.cell import CellMeasurement, CellReport

MIB = 1 << 20


def report_of(snapshot, start=0, end=10**12, rows=5, cell_of=lambda _: None, **changes):
    measured = CellMeasurement(start, end, 8 * MIB, 4 * MIB, 16 * MIB, 3, 0, 0, "")
    return CellReport(snapshot, replace(measured, **changes), rows, cell_of)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_snapshot_of_every_scenario(scenario):
    snapshot = snapshot_of(scenario)
    check_markup(snapshot._repr_html_())
    check_markup(summary(snapshot)._repr_html_())
    check_markup(reconstruct(snapshot)._repr_html_())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_cell_report_of_every_scenario(scenario):
    for rows in (0, 1, 100):
        report = report_of(snapshot_of(scenario), rows=rows)
        check_markup(report._repr_html_())
        assert "Memory of" in repr(report)


def test_timeline_shows_its_peak():
    timeline = reconstruct(snapshot_of("training"))
    markup = timeline._repr_html_()
    assert f"after entry {timeline.peak:,}" in markup
    assert "<svg" in markup
    assert repr(timeline).startswith(f"Timeline(moments={timeline.moments}, ")
    broken = replace(timeline, time_ns=np.empty(0, np.int64))
    assert "cannot be drawn: " in broken._repr_html_()


def test_hostile_names_are_escaped():
    markup = snapshot_of("evil")._repr_html_()
    assert "&lt;script&gt;alert(1)" in markup
    report = report_of(snapshot_of("evil"))
    assert "&lt;script&gt;alert(1)" in report._repr_html_()
    assert not set(EVIL) & set(repr(report)) & {"\u202e", "\udc80"}


def test_snapshot_that_cannot_be_analysed_shows_the_reason():
    broken = replace(snapshot_of("training"), blocks=np.empty(3))
    check_markup(broken._repr_html_())
    assert "cannot be analysed: " in broken._repr_html_()


def test_markup_of_a_long_history_is_small():
    assert len(snapshot_of("training")._repr_html_()) < 60_000


def test_cell_report_begins_with_the_cell():
    snapshot = snapshot_of("training")
    middle = int(snapshot.trace["time_ns"][len(snapshot.trace) // 2])
    report = report_of(snapshot, start=middle)
    assert len(report.snapshot.trace) == np.count_nonzero(snapshot.trace["time_ns"] >= middle)
    assert report.trace_is_complete
    assert not report_of(replace(snapshot, lost=1)).trace_is_complete
    assert "only the last" in repr(report_of(replace(snapshot, lost=1)))


def test_cell_numbers_replace_file_names():
    snapshot = snapshot_of("older peak")
    snapshot = replace(snapshot, strings=tuple("<module>" if text == "g" else text for text in snapshot.strings))
    report = report_of(snapshot, cell_of=lambda file: 7 if file == "app.py" else None)
    assert report.uses[0].frame.file == "cell [7]"
    assert "cell [7]:2\n" in repr(report)
    assert "cell [7]:2</td>" in report._repr_html_()


def test_remarks_of_a_cell_report():
    snapshot = snapshot_of("history off")
    assert "stopped or cleared the history" in repr(report_of(snapshot))
    assert "The cell allocated nothing on cpu" in report_of(snapshot, allocations=0)._repr_html_()
    small = {"numpy_device": "cpu", "small_count": 2}
    assert "2 small NumPy arrays, 1.00 MiB in all" in repr(report_of(snapshot, **small, small_bytes=MIB))
    assert "small" not in repr(report_of(snapshot, **small, small_bytes=100))
    assert "NumPy's arrays were allocated on cpu:1" in repr(report_of(snapshot, numpy_device="cpu:1"))
