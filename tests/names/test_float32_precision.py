"""The precision of float32 products, beyond the comparison with PyTorch in tests/names/scenes/top_level_names.py."""

from __future__ import annotations

import pytest

import forebay
from forebay import ForebayError, ForebayWarning


@pytest.fixture(autouse=True)
def _restored():
    before = forebay.get_float32_matmul_precision()
    yield
    forebay.set_float32_matmul_precision(before)


def test_unknown_precision_warns_and_sets_nothing():
    forebay.set_float32_matmul_precision("medium")
    with pytest.warns(ForebayWarning, match="^fast is not one of 'highest', 'high', or 'medium'") as caught:
        forebay.set_float32_matmul_precision("fast")
    assert caught[0].filename == __file__
    assert forebay.get_float32_matmul_precision() == "medium"


@pytest.mark.parametrize("precision", [None, 3, True, ["high"]], ids=str)
def test_precision_of_another_type_is_refused(precision):
    before = forebay.get_float32_matmul_precision()
    with pytest.raises(ForebayError) as caught:
        forebay.set_float32_matmul_precision(precision)
    assert str(caught.value) == f"set_float32_matmul_precision expects a str, but got {type(precision).__name__}"
    assert forebay.get_float32_matmul_precision() == before
