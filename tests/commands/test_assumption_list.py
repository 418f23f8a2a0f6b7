"""The list of assumed lines on terminals of any width."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from forebay._base.assumption_checks import AssumptionCheck, OppositeRun
from forebay._base.assumption_choices import AssumptionChoices
from forebay._base.verdicts import Assumption
from forebay.commands.assumption_list import print_assumptions, print_check

LINES = [
    Assumption(f"{Path.cwd()}/train.py:3: print(loss.item())", "a number slightly above 1", 1200),
    Assumption(f"/home/ada/projects/{'x' * 90}.py:7: {'y' * 900}", "False of isnan", 1),
    Assumption("a\x1b[31m.py:1: x", "1", 1),
]


def printed(width, write):
    out = io.StringIO()
    write(Console(file=out, width=width, highlight=False))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 130])
def test_list_follows_the_width(width):
    text = printed(width, lambda console: print_assumptions(console, LINES, "A sentence.", choices=AssumptionChoices()))
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[:3] == ["Assumed values".ljust(len(lines[0])), *lines[1:3]]
    assert lines[1].strip() == "train.py:3: print(loss.item())"
    assert lines[2].strip() == "a number slightly above 1, 1,200 times"
    (long,) = [line for line in lines if "yyy" in line]
    assert width - 3 <= len(long.rstrip()) <= width  # one row, which it fills
    assert "…" in long
    assert "\x1b" not in text


def test_choices_and_the_number_of_other_lines_are_named():
    many = [Assumption(f"a.py:{number}: x", "1", 1) for number in range(25)]
    text = printed(80, lambda console: print_assumptions(console, many, choices=AssumptionChoices(0.25, "worst")))
    assert "Assumed values (0.25 of the elements of masks, worst routing)" in text
    assert "and 5 lines more" in text


def test_nothing_assumed_prints_nothing():
    assert printed(80, lambda console: print_assumptions(console, [])) == ""


@pytest.mark.parametrize("width", [60, 80, 130])
def test_check_follows_the_width(width):
    run = OppositeRun(LINES[1].line, "did not finish", 1, 2, "ValueError: nan")
    check = AssumptionCheck(None, OppositeRun("", "did not finish", 1, 2, "ValueError: nan"), (run,), 3)
    text = printed(width, lambda console: print_check(console, check, "h100: "))
    assert text.startswith("h100: Whether the peak depends on them is not known.")
    assert "3 lines were not tried alone." in text
    assert max(map(len, text.splitlines())) <= width
