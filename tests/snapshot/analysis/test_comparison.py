"""Comparison of two snapshots: stacks that match, lines that moved, and figures that add up."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from support.snapshot_scenes import MIB, Scene, random_history, steps

from forebay.snapshot.analysis.comparison import compare
from forebay.snapshot.analysis.timeline import reconstruct


def scene(*allocations: tuple[int, str], stack=("main.py:9 main",)):
    made = Scene()
    for nbytes, call in allocations:
        made.allocate(nbytes, made.stack(*stack, call))
    return made.snapshot()


@given(steps, steps)
@hypothesis_settings(max_examples=40, deadline=None)
def test_changes_of_the_sites_add_up_to_those_of_the_totals(first, second):
    before, after = random_history(first), random_history(second)
    found = compare(before, after)
    for side, snapshot in enumerate((before, after)):
        timeline = reconstruct(snapshot)
        totals = found.totals[side]
        assert (totals.peak, totals.end) == (timeline.allocated[timeline.peak], timeline.allocated[-1])
        assert sum(site.peak[side].nbytes for site in found.sites) == totals.peak
        assert sum(site.end[side].nbytes for site in found.sites) == totals.end
        assert sum(site.end[side].blocks for site in found.sites) == len(
            timeline.allocations.live_at(len(snapshot.trace))
        )


@given(steps)
def test_snapshot_equals_itself(history):
    found = compare(random_history(history), random_history(history))
    assert all(site.peak[0] == site.peak[1] and site.end[0] == site.end[1] and not site.status for site in found.sites)


def test_new_vanished_and_grown_sites_are_found():
    before = scene((MIB, "a.py:1 f"), (2 * MIB, "b.py:2 g"))
    after = scene((5 * MIB, "a.py:1 f"), (3 * MIB, "c.py:3 h"))
    found = {site.label: site for site in compare(before, after).sites}
    assert {label: site.status for label, site in found.items()} == {
        "a.py:1 f": "",
        "b.py:2 g": "vanished",
        "c.py:3 h": "new",
    }
    assert [held.nbytes for held in found["a.py:1 f"].peak] == [MIB, 5 * MIB]
    assert [held.blocks for held in found["c.py:3 h"].end] == [0, 1]


def test_shifted_lines_and_other_folders_match_in_the_second_pass():
    before = scene((MIB, "/home/ada/a.py:10 f"), (2 * MIB, "/home/ada/a.py:20 f"))
    after = scene((3 * MIB, "/home/bob/a.py:14 f"), (4 * MIB, "/home/bob/a.py:24 f"), stack=("main.py:11 main",))
    found = compare(before, after)
    assert found.moved_stacks == 2
    assert [(site.label, [held.nbytes for held in site.peak], site.status) for site in found.sites] == [
        ("/home/bob/a.py:14 f", [MIB, 3 * MIB], "moved"),
        ("/home/bob/a.py:24 f", [2 * MIB, 4 * MIB], "moved"),
    ]


def test_exact_matches_take_precedence_over_shifted_ones():
    before = scene((MIB, "a.py:10 f"), (2 * MIB, "a.py:20 f"))
    after = scene((MIB, "a.py:20 f"), (2 * MIB, "a.py:30 f"))
    found = {site.label: site for site in compare(before, after).sites}
    assert [held.nbytes for held in found["a.py:20 f"].peak] == [2 * MIB, MIB]
    assert [held.nbytes for held in found["a.py:30 f"].peak] == [MIB, 2 * MIB]
    assert (found["a.py:20 f"].status, found["a.py:30 f"].status) == ("", "moved")


def test_same_site_with_different_callers_is_one_row():
    before = scene((MIB, "a.py:1 f"), stack=("main.py:1 main",))
    after = scene((MIB, "a.py:1 f"), stack=("main.py:1 main", "other.py:2 call"))
    (site,) = compare(before, after).sites
    assert ([held.nbytes for held in site.peak], site.known) == ([MIB, MIB], (True, True))


def test_equal_stacks_in_several_rows_are_one():
    snapshot = scene((MIB, "a.py:1 f"), (MIB, "a.py:1 f"))
    stacks = np.append(snapshot.stacks, snapshot.stacks[-1:])
    trace = snapshot.trace.copy()
    trace["stack"][-1] = len(snapshot.stacks)
    doubled = replace(snapshot, stacks=stacks, trace=trace)
    for pair in ((snapshot, doubled), (doubled, snapshot)):
        found = compare(*pair)
        assert found.moved_stacks == 0
        assert [held.blocks for held in found.sites[0].peak] == [2, 2]


def test_snapshots_without_stacks_or_history_are_compared():
    empty = Scene().snapshot()
    assert compare(empty, empty).sites == ()
    before = random_history([(1, 1000)])
    found = compare(before, replace(before, trace=before.trace[:0]))
    assert {site.status for site in found.sites} <= {"", "new", "vanished"}
    assert found.totals[1].entries == 0


def test_deep_stacks_take_linear_time():
    made = Scene()
    calls = [f"deep.py:{line} f" for line in range(1, 5000)]
    made.allocate(MIB, made.stack(*calls))
    snapshot = made.snapshot()
    assert not any(re.search("moved|new", site.status) for site in compare(snapshot, snapshot).sites)
