"""The table of results."""

from __future__ import annotations

import json
from dataclasses import replace

from forebay._base.verdicts import Verdict
from forebay.interop.torch.fit import FitResult, FitTable

GIB = 1 << 30
FITS = FitResult(
    "h100", {"batch": 8}, Verdict.FITS, 30 * GIB, 31 * GIB, 80 * GIB, {"activations": 20 * GIB, "inputs": 1}
)
FAILS = FitResult(
    "rtx_4090", {"batch": 8}, Verdict.DOES_NOT_FIT, 20 * GIB, 21 * GIB, 24 * GIB, {}, needed=30 * GIB
)  # fmt: skip
BROKEN = FitResult("t4", {"batch": 8}, Verdict.DID_NOT_FINISH, 0, 0, 16 * GIB, {}, message="KeyError: 1\nmore")
CAUGHT = FitResult(
    "v100", {"batch": 8}, Verdict.FITS_AFTER_ERRORS, GIB, GIB, 16 * GIB, {}, "fits after 2 caught out-of-memory errors",
    failed=20 * GIB,
)  # fmt: skip


def test_rows_say_what_is_needed():
    unknown = replace(FAILS, needed=None, ooms=1)  # as it did not end well with unlimited memory, either
    headings, rows = FitTable((FITS, FAILS, BROKEN, CAUGHT, unknown), ("batch",)).columns()
    assert headings[:3] == ("card", "batch", "")
    texts = ["fits", "does not fit", "did not finish", "fits after 2 caught out-of-memory errors"]
    texts.append("does not fit")
    assert [row[2] for row in rows] == texts
    needs = ["", "30.00 GiB allocated", "more: this is the peak so far", "20.00 GiB failed last"]
    needs.append("more than 20.00 GiB allocated")
    assert [row[-1] for row in rows] == needs
    assert rows[0][-2] == "activations 67%, inputs 0%"


def test_table_is_a_sequence_with_representations():
    found = FitTable((FITS, FAILS), ("batch",))
    assert len(found) == 2
    assert found[0] is FITS
    assert [*found[1:]] == [FAILS]
    assert repr(found).splitlines()[1].startswith("h100      8")
    assert "<table" in found._repr_html_()
    assert json.loads(json.dumps(found.as_json()))[1]["verdict"] == "does not fit"
    assert [each["fits"] for each in found.as_json()] == [True, False]


def test_largest_parameter_that_fits():
    more = FitResult("h100", {"batch": 16}, Verdict.TIGHT, 0, 0, 0, {})
    less = FitResult("h100", {"batch": 32}, Verdict.FITS_WITH_OTHER_SETTINGS, 0, 0, 0, {})
    assert FitTable((FITS, FAILS, more, less), ("batch",)).largest("batch") == {"h100": 16, "rtx_4090": None}
