from __future__ import annotations

import numpy as np

from forebay.snapshot.analysis.spans import Kind, Span
from forebay.snapshot.report.terminal_bands import draw_bands
from forebay.snapshot.report.terminal_chart import ChartColumns


def line(*spans, width=30, first=0, last=30):
    starts = np.linspace(first, last, width, endpoint=False).astype(np.int64)
    zeros = np.zeros(width, np.int64)
    lane = [Span(name, Kind.RANGE, begin, end, begin, end) for name, begin, end in spans]
    return draw_bands(ChartColumns(starts, starts, zeros[None], zeros), lane, 0)


def test_names_fill_their_columns():
    assert line(("forward", 2, 12), ("x", 15, 20)).plain == "  forward      x" + 14 * " "


def test_names_are_cut_and_numbers_kept():
    assert line(("ProfilerStep#7", 0, 5), ("backward", 5, 10), ("ab", 12, 13)).plain[:13] == "#7   back…   "


def test_spans_outside_of_the_columns_are_left_out():
    assert line(("gone", 0, 5), ("cut", 8, 14), first=10, last=40).plain == "cut " + 26 * " "


def test_span_without_a_column_is_left_out():
    many = [(f"s{at}", at, at + 1) for at in range(300)]
    assert len(line(*many, last=300).plain) == 30


def test_neighbors_have_other_shades():
    styles = [str(span.style) for span in line(("step 1", 0, 5), ("step 2", 5, 10)).spans if span.end > 1]
    assert len({*styles}) == 2
