"""The table of results."""

from __future__ import annotations

from forebay.interop.torch.fit import FitResult, FitTable

GIB = 1 << 30
FITS = FitResult("h100", {"batch": 8}, True, 30 * GIB, 31 * GIB, 80 * GIB, {"activations": 20 * GIB, "inputs": 1})
FAILS = FitResult(
    "rtx_4090", {"batch": 8}, False, 20 * GIB, 21 * GIB, 24 * GIB, {}, "CUDA out of memory. Tried", 30 * GIB
)  # fmt: skip
BROKEN = FitResult("t4", {"batch": 8}, False, 0, 0, 16 * GIB, {}, "KeyError: 1\nmore")


def test_rows_say_what_is_needed():
    headings, rows = FitTable((FITS, FAILS, BROKEN), ("batch",)).columns()
    assert headings[:3] == ("card", "batch", "")
    assert [row[2] for row in rows] == ["fits", "out of memory", "error"]
    assert [row[-1] for row in rows] == ["", "30.00 GiB allocated", "KeyError: 1"]
    assert rows[0][-2] == "activations 67%, inputs 0%"


def test_table_is_a_sequence_with_representations():
    found = FitTable((FITS, FAILS), ("batch",))
    assert len(found) == 2
    assert found[0] is FITS
    assert [*found[1:]] == [FAILS]
    assert repr(found).splitlines()[1].startswith("h100      8")
    assert "<table" in found._repr_html_()
    assert found.as_json()[1]["verdict"] == "out of memory"


def test_largest_parameter_that_fits():
    more = FitResult("h100", {"batch": 16}, True, 0, 0, 0, {})
    assert FitTable((FITS, FAILS, more), ("batch",)).largest("batch") == {"h100": 16, "rtx_4090": None}
