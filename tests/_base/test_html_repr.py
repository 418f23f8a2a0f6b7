"""Markup for notebooks: hostile text is escaped, and all of it is well-formed and inert."""

from __future__ import annotations

import pytest
from support.markup import check_markup
from support.report_pages import EVIL

from forebay._base import html_repr

PARTS = {
    "box": html_repr.box,
    "facts": lambda text: html_repr.facts([(text, text)]),
    "table": lambda text: html_repr.table([text, text], [[text, text]]),
    "note": html_repr.note,
    "preformatted": html_repr.preformatted,
    "figure": lambda text: html_repr.figure(text, 10, 10, ""),
}


@pytest.mark.parametrize("part", PARTS)
def test_hostile_text_is_escaped(part):
    check_markup(PARTS[part](EVIL))


@pytest.mark.parametrize("part", ["box", "note", "facts", "table", "figure"])
def test_long_text_is_shortened(part):
    assert len(PARTS[part]("x" * 1_000_000)) < 20_000


def test_preformatted_keeps_lines():
    markup = html_repr.preformatted("a  b\nc")
    assert "a  b\nc" in markup
    assert "monospace" in markup  # Jupyter's style for pre has another font


def test_tables_without_rows_are_empty():
    assert html_repr.table(["a"], []) == html_repr.facts([]) == ""


@pytest.mark.parametrize("planted", ["<script></script>", "<p>", "<p onclick='x'></p>", "<img src='http://host/x'/>"])
def test_planted_markup_is_found(planted):
    with pytest.raises(AssertionError):
        check_markup(planted)
