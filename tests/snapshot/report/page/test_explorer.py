"""Data of the explorer: the allocations, segments and events of the analysis."""

from __future__ import annotations

import numpy as np
import pytest
from support.page_columns import decode
from support.report_pages import SCENARIOS, snapshot_of
from support.snapshot_scenes import training

from forebay.snapshot.analysis import summary
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.report.page import explorer
from forebay.snapshot.report.page.view import make_view


def columns_of(snapshot):
    data = explorer.data(make_view(snapshot))
    return decode(data["layout"], data["packed"])


def looked_up(columns, name):
    return columns[f"{name}.table"][columns[name]]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_allocations_are_those_of_the_timeline(scenario):
    snapshot = snapshot_of(scenario)
    held, columns = reconstruct(snapshot).allocations, columns_of(snapshot)
    rows = np.argsort(held.start, kind="stable")
    assert columns["start"].tolist() == held.start[rows].tolist()
    assert (columns["start"] + columns["lifetime"]).tolist() == held.end[rows].tolist()
    for name in ("nbytes", "stack", "address"):
        assert looked_up(columns, name).tolist() == getattr(held, name)[rows].tolist()


def test_streams_have_names():
    snapshot = training()
    snapshot.segments["queue"], snapshot.trace["queue"][:] = 7, 1 << 62
    data = explorer.data(make_view(snapshot))
    columns = decode(data["layout"], data["packed"])
    assert data["streams"] == ["7", "0x4000000000000000"]
    assert set(columns["queue"].tolist()) == {1}
    assert set(columns["segment.queue"].tolist()) == {0}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_reserved_bytes_follow_from_segments_and_their_changes(scenario):
    snapshot = snapshot_of(scenario)
    timeline, columns = reconstruct(snapshot), columns_of(snapshot)
    change = np.zeros(timeline.moments, np.int64)
    np.add.at(change, columns["change.moment"], columns["change.sign"] * columns["change.nbytes"])
    final = columns["segment.nbytes"].sum()
    assert (final - change.sum() + np.cumsum(change)).tolist() == timeline.reserved.tolist()


def test_out_of_memory_events_are_included():
    snapshot = training()
    columns, (oom,) = columns_of(snapshot), summary.ooms(snapshot)
    found = [columns[f"oom.{name}"].tolist() for name in ("moment", "wanted", "free")]
    assert found == [[oom.at], [oom.wanted], [oom.device_free]]


def test_names_leave_out_the_common_folder():
    sites = explorer.data(make_view(training()))["sites"]
    assert "engine/metrics.py:27 History.append" in sites
    assert sites[0] == "(before recording)"
