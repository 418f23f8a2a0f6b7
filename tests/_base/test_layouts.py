"""Shapes, and constants for layouts; the expected values and errors are those of PyTorch 2.13."""

from __future__ import annotations

import operator
import pickle

import numpy as np
import pytest

import forebay
from forebay import Size


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (Size(), ()),
        (Size([np.int64(2), True]), (2, 1)),
        (Size([2]) + (1,), (2, 1)),  # noqa: RUF005 -- the operator is tested
        ((1,) + Size([2]), (1, 2)),  # noqa: RUF005 -- as above
        (Size([1]) + Size([2]), (1, 2)),
        (Size([2, 3]) * 2, (2, 3, 2, 3)),
        (2 * Size([2, 3]), (2, 3, 2, 3)),
        (Size([2]) * np.int64(2), (2, 2)),
        (-1 * Size([2]), ()),
        (Size([2, 3, 4])[1:], (3, 4)),
    ],
    ids=str,
)
def test_operators_return_sizes(made, expected):
    assert type(made) is Size
    assert made == expected
    assert repr(made) == f"forebay.Size({[*expected]})"


@pytest.mark.parametrize("length", ["a", 2.5, None, [1]], ids=str)
def test_length_that_is_not_an_int_is_refused(length):
    name = type(length).__name__
    text = rf"^forebay\.Size\(\) takes an iterable of 'int' \(item 1 is '{name}'\)$"
    for make in (
        lambda: Size([1, length]),
        lambda: Size([1]) + (length,),  # noqa: RUF005 -- as above
        lambda: (1, length) + Size([3]),  # noqa: RUF005 -- as above
    ):
        with pytest.raises(TypeError, match=text):
            make()


@pytest.mark.parametrize(
    ("operation", "left", "right", "text"),
    [
        (operator.add, Size([2]), [1], "can only concatenate tuple (not list) to forebay.Size"),
        (operator.add, Size([2]), 3, "can only concatenate tuple (not int) to forebay.Size"),
        (operator.add, [1], Size([2]), 'can only concatenate list (not "Size") to list'),
        (operator.add, 3, Size([2]), "unsupported operand type(s) for +: 'int' and 'Size'"),
        (operator.mul, Size([2]), 2.0, "can't multiply sequence by non-int of type 'float'"),
        (operator.mul, 2.0, Size([2]), "can't multiply sequence by non-int of type 'float'"),
        (operator.mul, Size([2]), "a", "can't multiply sequence by non-int of type 'str'"),
    ],
    ids=str,
)
def test_operands_of_other_types_are_refused(operation, left, right, text):
    with pytest.raises(TypeError) as caught:
        operation(left, right)
    assert str(caught.value) == text


def test_size_keeps_its_type_through_pickles():
    again = pickle.loads(pickle.dumps(Size([2, 3])))
    assert (type(again), again, again.numel()) == (Size, (2, 3), 6)


@pytest.mark.parametrize(
    "name", ["strided", "contiguous_format", "preserve_format", "channels_last", "channels_last_3d"]
)
def test_constants_are_unpickled_as_themselves(name):
    constant = getattr(forebay, name)
    assert pickle.loads(pickle.dumps(constant)) is constant
    assert repr(constant) == f"forebay.{name}"
