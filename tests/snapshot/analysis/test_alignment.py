"""Memory of two histories on one axis: the same step, second or entry is in the same part of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.snapshot_programs import MIB
from support.snapshot_scenes import Scene, training

from forebay.snapshot.analysis.alignment import Axis, align
from forebay.snapshot.analysis.timeline import reconstruct


def aligned(before, after):
    return align((before, after), (reconstruct(before), reconstruct(after)))


def looped(steps, before=0, layers=4, extra=0):
    """Return the history of a loop whose steps allocate layers of 1, 2, … MiB and free them."""
    made = Scene()
    for number in range(before):
        made.advance()
        made.allocate(MIB, made.stack(f"setup.py:{number + 1} load"))
    for _ in range(steps):
        made.advance()
        live = [made.allocate((layer + 1) * MIB, made.stack(f"net.py:{layer + 1} f")) for layer in range(layers)]
        for address in live:
            made.free(address)
    for number in range(extra):
        made.allocate(MIB, made.stack(f"save.py:{number + 1} save"))
    return made.snapshot()


def test_equal_steps_are_in_the_same_place():
    """The second program has more to load: its steps begin later in the history, and at the same place of the axis."""
    found = aligned(looped(20), looped(20, before=37))
    assert (found.axis, found.steps[0]) == (Axis.STEPS, found.steps[1])
    assert found.start == pytest.approx(-38 / 12, abs=0.5)  # of 12 entries each
    places = np.linspace(found.start, found.end, len(found.before), endpoint=False)
    inside = np.flatnonzero((places > 0) & (places < found.steps[0] - 1))
    assert len(inside) > 100
    assert {(found.after[at] - found.before[at]) // MIB for at in inside.tolist()} == {37}


def test_shorter_history_ends_earlier():
    found = aligned(looped(10), looped(20))
    assert found.axis == Axis.STEPS
    assert found.before[-1] is None
    assert found.after[-1] is not None
    assert (found.before[0], found.after[0]) != (None, None)


@pytest.mark.parametrize("other", [{"layers": 15, "steps": 20}, {"steps": 1, "before": 9}], ids=["longer", "none"])
def test_other_histories_are_aligned_by_time(other):
    pair = looped(20), looped(**other)
    found = aligned(*pair)
    assert (found.axis, found.start, found.steps) == (Axis.TIME, 0, (0, 0))
    assert found.end == max((reconstruct(each).time_ns[-1] - reconstruct(each).time_ns[0]) / 1e9 for each in pair)


def test_files_without_times_are_aligned_by_entries():
    pair = []
    for each in (looped(1, before=9), looped(1, before=5)):
        trace = each.trace.copy()
        trace["time_ns"] = 0
        pair.append(replace(each, trace=trace))
    found = aligned(*pair)
    assert (found.axis, found.end) == (Axis.ENTRIES, len(pair[0].trace))


def test_highest_value_of_each_part_is_kept():
    """Both curves contain the peak of their history, though a part of the axis has many entries."""
    before, after = training(steps=30), training(steps=40)
    found = aligned(before, after)
    for side, snapshot in ((found.before, before), (found.after, after)):
        timeline = reconstruct(snapshot)
        assert max(nbytes for nbytes in side if nbytes is not None) == timeline.allocated[timeline.peak]


def test_history_is_needed():
    assert aligned(Scene().snapshot(), looped(3)) is None
