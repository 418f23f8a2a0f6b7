"""Figures of a device as JSON values: those of the timeline, with as many points and sites as asked for."""

from __future__ import annotations

import json

import pytest
from support.snapshot_scenes import random_history

from forebay.snapshot.analysis.summary import sites
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.report.figures import device_figures

STEPS = [(number * number % 37, 512 + number * 1000) for number in range(400)]  # allocations, frees and reuse


@pytest.mark.parametrize("points", [1, 7, 100_000])
def test_figures_equal_the_timeline(points):
    snapshot = random_history(STEPS)
    timeline = reconstruct(snapshot)
    found = json.loads(json.dumps(device_figures(snapshot, rows=2, points=points)))
    assert found["peak_bytes"] == timeline.allocated.max() == timeline.allocated[found["peak_moment"]]
    assert found["moment"] == found["peak_moment"]
    used = sites(snapshot)
    assert [each["live_bytes"] for each in found["sites"]] == [each.live_bytes for each in used[:2]]
    assert found["other_sites"] == len(used) - len(found["sites"])
    moments = [each["moment"] for each in found["timeline"]]
    assert moments == sorted({*moments})
    assert len(moments) == min(points, timeline.moments)
    assert max(each["allocated_bytes"] for each in found["timeline"]) == found["peak_bytes"]
    assert all(each["reserved_bytes"] == timeline.reserved[each["moment"]] for each in found["timeline"])


def test_sites_of_another_moment():
    snapshot = random_history(STEPS)
    found = device_figures(snapshot, moment=0)
    assert sum(each["live_bytes"] for each in found["sites"]) == reconstruct(snapshot).allocated[0]


@pytest.mark.parametrize("moment", [-1, 10**9])
def test_unknown_moment_is_an_error(moment):
    with pytest.raises(ValueError, match=r"has no moment .*; choose from 0 to"):
        device_figures(random_history(STEPS[:9]), moment=moment)
