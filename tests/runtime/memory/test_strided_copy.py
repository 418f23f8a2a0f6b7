"""What is unbroken, as NumPy sees it; and copies that need no question of NumPy give what its own give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import forebay
from forebay.runtime.memory import strided_copy, transfer

pytestmark = pytest.mark.usefixtures("clean")


@given(st.data())
def test_unbroken_is_what_numpy_calls_contiguous(data):
    shape = data.draw(arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
    whole = np.empty(shape, data.draw(st.sampled_from([np.uint8, np.float32, np.complex128])))
    part = whole[data.draw(arrays.basic_indices(shape))] if shape else whole
    part = np.asarray(part).transpose(data.draw(st.permutations(range(np.ndim(part)))))
    assert strided_copy.is_unbroken(part.shape, part.strides, part.itemsize) == part.flags.c_contiguous


@given(count=st.integers(0, 6), to=st.integers(0, 6), from_=st.integers(0, 6))
def test_parts_of_one_tensor_are_copied_wherever_they_lie(count, to, from_):
    wanted = np.arange(12)
    tensor = forebay.from_numpy(wanted.copy())
    wanted[to : to + count] = wanted[from_ : from_ + count].copy()
    tensor[to : to + count].copy_(tensor[from_ : from_ + count])
    assert tensor.tolist() == wanted.tolist()


def test_only_what_lies_apart_is_alike():
    tensor = forebay.zeros(8)
    assert strided_copy.are_alike(tensor[:4], tensor[4:])
    assert not strided_copy.are_alike(tensor[:4], tensor[3:7])
    assert not strided_copy.are_alike(tensor[:4], tensor[:4])
    assert not strided_copy.are_alike(tensor[:0], tensor[4:4])
    assert not strided_copy.are_alike(tensor[:4], tensor[4:].view("int32"))
    assert not strided_copy.are_alike(tensor[:4], tensor[4:].view(2, 2))
    assert not strided_copy.are_alike(tensor[:2], tensor[4::2])


def test_the_short_way_asks_numpy_for_nothing(monkeypatch):
    target, source = forebay.zeros(8), forebay.full((8,), 3.0)
    monkeypatch.setattr(transfer, "_queue_copy", None)
    assert target.copy_(source).tolist() == [3] * 8
