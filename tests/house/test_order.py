"""The order of the tests in conftest.py: long ones first, on all processes."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest


def cut_as_xdist(tests, processes):
    """Return the parts into which the scheduler `worksteal` of pytest-xdist cuts the tests."""
    parts, left = [], list(tests)
    for number in range(processes):
        size = len(left) // (processes - number)
        parts.append(left[:size])
        left = left[size:]
    return parts


@pytest.fixture
def parts(root, pytestconfig):
    return pytestconfig.pluginmanager.get_plugin(str(root / "conftest.py"))._parts


@pytest.mark.parametrize("processes", [1, 2, 3, 5, 30])
def test_each_process_begins_with_its_share_of_the_long_tests(parts, processes):
    units = [["a"], ["b"], ["c1", "c2"], ["d"], ["e1", "e2"]]
    others = [f"other {number}" for number in range(100)]
    ordered = parts(units, others, processes)
    assert Counter(ordered) == Counter([*chain(*units), *others])
    for number, part in enumerate(cut_as_xdist(ordered, processes)):
        own = [*chain(*units[number::processes])]
        assert part[: len(own)] == own
    assert [test for test in ordered if test.startswith("other")] == others


@pytest.mark.parametrize(("long", "short", "processes"), [(9, 0, 2), (9, 1, 3), (0, 4, 3), (1, 0, 4), (0, 0, 2)])
def test_no_test_is_lost_if_there_are_few(parts, long, short, processes):
    units, others = [[f"long {number}"] for number in range(long)], [f"other {number}" for number in range(short)]
    assert sorted(parts(units, others, processes)) == sorted([*chain(*units), *others])
