"""Checks of assumed values, from the results of runs with opposite ones."""

from __future__ import annotations

import json

import pytest

from forebay._base.assumption_checks import MOST_LINES, AssumptionCheck, check_assumptions
from forebay._base.assumption_choices import AssumptionChoices
from forebay._base.verdicts import DECIDES_SIZE, Assumption, Judgement, Verdict

GIB = 1 << 30
PEAKS = {0: (2 * GIB, 3 * GIB)}
LINES = (Assumption("a.py:1: x.item()", "1.5", 3), Assumption("a.py:2: x[m]", f"all{DECIDES_SIZE}", 1))
SAME = (Judgement(Verdict.FITS, "fits"), PEAKS)
MORE = (Judgement(Verdict.TIGHT, "tight"), {0: (4 * GIB, 5 * GIB)})
FAILED = (Judgement(Verdict.DID_NOT_FINISH, "did not finish", (), "ValueError: nan", "a.py:9"), {0: (GIB, GIB)})
FULL = (Judgement(Verdict.DOES_NOT_FIT, "does not fit", (), "out of memory"), {0: (GIB, GIB)})


def check(results, lines=LINES):
    """Return the check with the result of the whole run, and of each line by its number."""
    asked = []

    def run(choices):
        asked.append(choices)
        return results.get(choices.lines[0].split(":")[1] if choices.lines else "", SAME)

    found = check_assumptions(PEAKS, lines, AssumptionChoices(0.5, "worst"), run)
    assert all((each.opposite, each.mask, each.routing) == (True, 0.5, "worst") for each in asked)
    json.dumps(found.as_json())
    return found, [each.lines for each in asked]


def test_equal_peaks_need_one_run():
    found, asked = check({"": SAME})
    assert (found.depends, asked) == (False, [()])
    (sentence,) = found.sentences()
    assert sentence == (
        "The peak does not depend on them: with the opposite choices, it is the same, 2.00 GiB allocated and "
        "3.00 GiB reserved."
    )


def test_line_that_decides_is_found():
    found, asked = check({"": MORE, "2": MORE})
    assert found.depends is True
    assert asked[1:] == [(LINES[1].line,), (LINES[0].line,)]  # what decides a size is tried first
    assert [*found.sentences()] == [
        "The peak depends on them: with the opposite choices, it is 4.00 GiB allocated and 5.00 GiB reserved.",
        "a.py:2: x[m]: the peak is 4.00 GiB allocated, 5.00 GiB reserved",
        "a.py:1: x.item(): no difference",
    ]


@pytest.mark.parametrize(
    ("results", "depends", "words"),
    [
        ({"": FAILED}, False, "The peak does not depend on any of the lines alone."),
        ({"": FAILED, "1": FAILED}, None, "Whether the peak depends on them is not known."),
        ({"": FAILED, "1": FAILED, "2": MORE}, True, "The peak depends on them."),
    ],
)
def test_run_that_does_not_finish_is_said_so(results, depends, words):
    found, _ = check(results)
    assert found.depends is depends
    first, *lines = found.sentences()
    assert first.startswith(f"{words} The run with the opposite choices did not finish: ValueError: nan; at a.py:9.")
    assert (
        "a.py:1: x.item(): did not finish: ValueError: nan; at a.py:9; so far 1.00 GiB allocated" in " ".join(lines)
    ) is ("1" in results)


def test_run_out_of_memory_depends():
    found, _ = check({"": FULL})
    assert (found.depends, found.opposite.outcome, found.opposite.message) == (True, "differs", "out of memory")
    assert [*found.sentences()][-1] == "No line decides it alone."


def test_peak_beyond_the_first_depends_also_if_the_run_failed():
    found, _ = check({"": (FAILED[0], {0: (2 * GIB, 4 * GIB)})})
    assert found.depends is True


def test_many_lines_are_not_all_tried():
    lines = tuple(Assumption(f"a.py:{number}: x", "1", 1) for number in range(1, 30))
    found, asked = check({"": FAILED}, lines)
    assert (found.depends, found.untried, len(asked)) == (None, 29 - MOST_LINES, 1 + MOST_LINES)
    assert [*found.sentences()][-1] == f"{29 - MOST_LINES} lines were not tried alone."


def test_nothing_assumed_needs_no_run():
    found, asked = check({}, ())
    assert (found.depends, asked, [*found.sentences()]) == (False, [], ["No line received an assumed value."])


def test_reason_is_said():
    assert [*AssumptionCheck(None, reason="it failed").sentences()] == ["Not checked: it failed."]
