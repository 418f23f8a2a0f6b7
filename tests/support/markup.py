"""Check of markup for notebooks: well-formed, without scripts, events, and references to other places."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_TAGS = {"circle", "div", "path", "pre", "rect", "svg", "table", "td", "text", "th", "tr"}
_STYLE = {"style", "role", "aria-label", "viewbox", "xmlns", "font-family", "font-size", "font-weight", "overflow"}
_SHAPE = {"x", "y", "dx", "dy", "cx", "cy", "r", "d", "width", "height", "preserveaspectratio", "text-anchor"}
_PAINT = {"fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "vector-effect"}
_ATTRIBUTES = _STYLE | _SHAPE | _PAINT


class _Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attributes):
        assert tag in _TAGS, tag
        assert {name for name, _ in attributes} <= _ATTRIBUTES, attributes
        assert not any("url(" in (value or "") for _, value in attributes), attributes
        self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        assert not re.search(r"[\u202a-\u202e\udc80-\udcff\x00-\x08]", data), data


def check_markup(markup: str) -> None:
    """Fail if the markup is not well-formed or has an element or attribute that forebay does not use."""
    checker = _Checker()
    checker.feed(markup)
    checker.close()
    assert checker.open == []
