from __future__ import annotations

from support.annotated_history import MIB, annotated

from forebay.snapshot.analysis.growth import growth
from forebay.snapshot.analysis.periods import find_steps
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.formats import torch_pickle


def steps_of(value):
    (snapshot,) = torch_pickle.snapshots(value)
    return find_steps(snapshot, reconstruct(snapshot))


def test_marked_steps_are_exact_boundaries():
    """The steps have different numbers of allocations, so that no repetition is found without the marks."""
    found = steps_of(annotated(4))
    assert (found.name, found.count, found.exact) == ("ProfilerStep", 4, True)
    assert found.moments.tolist() == [1, 8, 18, 31, 47]


def test_growth_is_that_of_the_marked_steps():
    (snapshot,) = torch_pickle.snapshots(annotated(5))
    found = growth(snapshot)
    assert (found.per_step, found.grown, found.compared) == (MIB, 5, 5)
    assert [(site.frame.line, site.per_step, site.leaks) for site in found.sites] == [(30, MIB, True)]


def test_step_that_the_ring_buffer_cut_is_left_out():
    value = annotated(6)
    value["device_traces"][0] = value["device_traces"][0][12:]  # within the second step
    assert steps_of(value).count == 4


def test_unfinished_step_is_left_out():
    value = annotated(5)
    del value["external_annotations"][-1]
    assert steps_of(value).count == 4


def test_frees_between_steps_are_no_growth():
    """A loop that frees what a step made between its steps: the last end is no boundary like the beginnings."""
    value = annotated(4)
    for mark in value["external_annotations"]:
        if mark["stage"] == "END" and mark["name"].startswith("Profiler"):
            mark["time_us"] -= 3500  # before the last two frees
    found = steps_of(value)
    assert found.count == 3
