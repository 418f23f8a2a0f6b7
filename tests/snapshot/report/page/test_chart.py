"""Sampling of curves: no extreme is lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.snapshot_scenes import training

from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.report.page import chart


@given(st.lists(st.integers(-5, 5), min_size=1), st.data())
def test_extremes_are_found_in_each_bucket(values, more):
    curve = np.array(values)
    starts = np.array(sorted(more.draw(st.sets(st.integers(0, len(values) - 1))) | {0}))
    found = set(chart.extremes(curve, starts).tolist())
    for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
        kept = [values[at] for at in found if start <= at < end]
        assert (min(kept), max(kept)) == (min(values[start:end]), max(values[start:end]))


def test_layers_add_up_to_allocated_bytes():
    timeline = reconstruct(training())
    rank = np.arange(len(timeline.allocations.start)) % 3
    curves = chart.sample_curves(timeline, rank, 3, [timeline.peak])
    assert timeline.peak in curves.moments
    assert curves.layers.sum(axis=0).tolist() == timeline.allocated[curves.moments].tolist()
