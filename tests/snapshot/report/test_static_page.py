"""The HTML page of paragraphs: escaped, self-contained, and the same bytes for the same paragraphs."""

from __future__ import annotations

from html.parser import HTMLParser

from forebay.snapshot.report.paragraph import Chart, Paragraph
from forebay.snapshot.report.static_page import page

HOSTILE = '</style></title><script>alert(1)</script>"\x1b\u202e'


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text.append(data)


def parse(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    return tags


def test_text_from_files_is_escaped():
    rows = ((HOSTILE, HOSTILE),)
    text = page(HOSTILE, [Paragraph(HOSTILE, (HOSTILE,), (HOSTILE, HOSTILE), rows, HOSTILE, (0.5,))])
    tags = parse(text)
    assert "script" not in tags.found
    assert not any(name.startswith("on") or name in ("src", "href") for name in tags.attributes)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_page_makes_no_requests_and_is_reproducible():
    parts = [Paragraph("Sites", ("One.",), ("site", "bytes"), (("a.py", "1 B"), ("b.py", "2 B")), "", (0.5, 7.0))]
    text = page("Title", parts)
    assert text == page("Title", parts)
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert "--share:50.00%" in text
    assert "--share:100.00%" in text
    assert {"table", "th", "td", "h1", "h2"} <= parse(text).found


def test_empty_parts_have_no_table():
    assert "table" not in parse(page("Title", [Paragraph("Only text", ("One.",))])).found


def test_chart_is_a_picture_with_its_names_escaped():
    chart = Chart(((HOSTILE, (1 << 20, 2 << 20, None)), ("after", (None, 1 << 20, 0))), HOSTILE, "end")
    tags = parse(page("Chart", [Paragraph("Memory", chart=chart)]))
    assert {"svg", "path", "figure"} <= tags.found
    assert "script" not in tags.found
    text = page("Chart", [Paragraph("Memory", chart=chart)])
    assert 'd="M0 51.00H1V2.00H2"' in text
    assert 'd="M1 51.00H2V100.00H3"' in text
