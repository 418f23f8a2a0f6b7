"""The table of programs in the reference: the file of results that the repository has, as dev.py packages writes it."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the documentation's requirements are not installed")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def table(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    yield importlib.import_module("program_table")
    sys.modules.pop("program_table", None)


def result(**changes):
    given = {
        "name": "a program",
        "source": "owner/name",
        "commit": "0123456789",
        "with_values": "",
        "without_values": "",
    }
    return {**given, "peaks": [2048, 4096], "assumed": 1, "seconds": 2.0, **changes}


def test_row_has_the_figures_and_why_a_program_misses(table):
    found = [
        result(),
        result(name="own", source="", commit="", without_values="the peak is 1 | 2", peaks=[10, 0], assumed=0),
        result(name="old", with_values="it\nfailed"),
    ]
    first, own, old = table.table(found, {"old": "it is too old"})[2:]
    assert first == "| a program | [01234567](https://github.com/owner/name/tree/0123456789) | 2,048 | 4,096 | 1 |  |"
    assert own == "| own |  | 10 |  |  | without: the peak is 1 \\| 2 |"
    assert old.endswith("| it is too old (with: it failed) |")
    assert table.counts(found) == "Of 3 programs, 2 pass with values and 2 without."


def test_results_are_of_programs_that_exist(table):
    public = tomllib.loads((ROOT / "tools/packages/public_programs.toml").read_text(encoding="utf-8"))
    commits = {each["name"]: entry["commit"] for entry in public.values() for each in entry["programs"]}
    found = [each for each in table.results() if each["source"]]
    assert found
    assert {each["name"]: each["commit"] for each in found}.items() <= commits.items()
