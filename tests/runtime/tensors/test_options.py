"""Options of tensor factories: invalid values are refused with one clear error."""

from __future__ import annotations

import pytest

import forebay


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        ("arange(float('nan'))", RuntimeError, "unsupported range: 0 -> nan"),
        ("arange(0, float('inf'))", RuntimeError, "unsupported range: 0 -> inf"),
        ("arange(1, 2, 0)", RuntimeError, "step must be nonzero"),
        ("arange(2, 1)", RuntimeError, "inconsistent with step sign"),
        ("empty(2, out=3)", TypeError, "'out' must be Tensor, not int"),
        ("empty(2, requires_grad=True)", forebay.Unsupported, "automatic differentiation"),
        ("empty(2, layout=3)", forebay.Unsupported, "only forebay.strided"),
        ("empty(2, memory_format=3)", TypeError, "must be memory_format, not int"),
    ],
)
def test_invalid_option_is_refused(source, error, text):
    with pytest.raises(error) as caught:
        eval(f"forebay.{source}")
    assert text in str(caught.value)
