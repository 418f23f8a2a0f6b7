"""The transcripts in the documentation are the output of their commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.transcripts import updated

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


@pytest.mark.parametrize(
    "name", ["tune-the-allocator", "compare-snapshots", "explain-out-of-memory", "convert-snapshots"]
)
def test_transcripts_are_the_output_of_the_commands(monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "100")
    page = (PAGES / f"{name}.md").read_text()
    assert "$ forebay " in page
    assert updated(page) == page  # to update it: cd tests; COLUMNS=100 python -m support.transcripts PAGE


def test_changed_output_is_noticed(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    page = "```text\n$ forebay --version\nforebay 0\n```"
    assert updated(page) != page
    assert updated(updated(page)) == updated(page)
