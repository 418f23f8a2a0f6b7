from __future__ import annotations

import io

from support.annotated_history import annotated

from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.report import html
from forebay.snapshot.report.page.bands import add_bands
from forebay.snapshot.report.page.columns import Columns
from forebay.snapshot.report.page.view import make_view


class Kept(Columns):
    """Columns that keep what was added."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, list[int]] = {}

    def add(self, name, values):
        self.kept[name] = [*map(int, values)]
        super().add(name, values)


def test_columns_have_the_spans_and_their_use():
    (snapshot,) = torch_pickle.snapshots(annotated(2))
    columns = Kept()
    names, ranges = add_bands(make_view(snapshot), columns)
    assert names[:2] == ["ProfilerStep#0", "ProfilerStep#1"]
    assert ranges == ["ProfilerStep", "forward", '{"phase":"forward"}', "backward"]
    kept = columns.kept
    assert [names[row] for row in kept["span.name"]].count("forward") == 2
    assert kept["span.lane"][:2] == [0, 0]
    assert kept["span.color"][0] == kept["span.color"][1]
    assert (kept["span.begin"][0], kept["span.end"][0]) == (1, 8)
    assert kept["range.times"][0] == 2


def test_notes_of_rows_are_no_text_of_the_page():
    (snapshot,) = torch_pickle.snapshots(annotated(2))
    page = io.StringIO()
    html.write(snapshot, page)
    assert "external_annotations" not in page.getvalue()
