"""`Tensor.float` and the other conversions, `type`, `new`, `equal`, beyond the scenes in tests/names/scenes."""

from __future__ import annotations

import numpy as np
import pytest

import forebay


@pytest.mark.parametrize(("name", "expected"), [("int", [0, 1, -2]), ("bool", [False, True, True])])
def test_conversion_by_name_converts_elements(name, expected):
    assert getattr(forebay.tensor([0, 1.5, -2]), name)().tolist() == expected


def test_type_accepts_the_names_of_both_libraries():
    numbers = forebay.tensor([1.5])
    assert numbers.type("torch.IntTensor").tolist() == numbers.type("forebay.IntTensor").tolist() == [1]
    assert numbers.type(np.dtype("int32")).tolist() == [1]


def test_type_moves_to_the_kind(emulated):
    assert forebay.tensor([1.5]).type("torch.cuda.HalfTensor").device == forebay.device("cuda:0")


def test_new_shares_memory_of_a_storage():
    numbers = forebay.tensor([1.0, 2.0])
    numbers.new(numbers.untyped_storage()).fill_(3)
    assert numbers.tolist() == [3, 3]


def test_equal_compares_elements_on_a_device(emulated):
    ones = forebay.ones(3, device="cuda")
    assert ones.equal(forebay.full((3,), 1, device="cuda"))
    assert not ones.equal(forebay.zeros(3, device="cuda"))
