"""Contiguity and plain copies, compared with NumPy."""

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
def test_contiguity_agrees_with_numpy(data):
    shape = data.draw(arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
    whole = np.empty(shape, data.draw(st.sampled_from([np.uint8, np.float32, np.complex128])))
    part = whole[data.draw(arrays.basic_indices(shape))] if shape else whole
    part = np.asarray(part).transpose(data.draw(st.permutations(range(np.ndim(part)))))
    assert strided_copy.is_c_contiguous(part.shape, part.strides, part.itemsize) == part.flags.c_contiguous


@given(count=st.integers(0, 6), to=st.integers(0, 6), from_=st.integers(0, 6))
def test_copy_between_parts_of_one_tensor_agrees_with_numpy(count, to, from_):
    expected = np.arange(12)
    tensor = forebay.from_numpy(expected.copy())
    expected[to : to + count] = expected[from_ : from_ + count].copy()
    tensor[to : to + count].copy_(tensor[from_ : from_ + count])
    assert tensor.tolist() == expected.tolist()


def test_plain_run_needs_same_layout_without_overlap():
    tensor = forebay.zeros(8)
    address = tensor.data_ptr()
    assert strided_copy.plain_run(tensor[:4], tensor[4:]) == (address, address + 16, 16)
    assert strided_copy.plain_run(tensor.view(2, 4)[1:], tensor[:4].view(1, 4)) == (address + 16, address, 16)
    others = tensor[3:7], tensor[:4], tensor[4:].view("int32"), tensor[4:].view(2, 2), tensor[::2]
    assert [strided_copy.plain_run(tensor[:4], other) for other in others] == [None] * 5
    assert strided_copy.plain_run(tensor[:0], tensor[4:4]) is None
    assert strided_copy.plain_run(tensor[:2], tensor[4::2]) is None
    assert strided_copy.plain_run(tensor[4::2], tensor[:2]) is None


def test_plain_copy_does_not_compute_runs(monkeypatch):
    target, source = forebay.zeros(8), forebay.full((8,), 3.0)
    monkeypatch.setattr(transfer, "_queue_elements", None)
    assert target.copy_(source).tolist() == [3] * 8
