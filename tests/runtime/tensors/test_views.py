"""Views, compared with NumPy's on the same data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import forebay

pytestmark = pytest.mark.usefixtures("clean")


def assert_same(ours, array):
    assert ours.shape == array.shape
    assert ours.dtype == array.dtype
    assert ours.numel() == array.size
    assert ours.is_contiguous() == array.flags.c_contiguous
    np.testing.assert_array_equal(ours.numpy(), array)
    if array.size:
        assert ours.byte_strides == array.strides or 1 in array.shape
        assert ours.data_ptr() == array.__array_interface__["data"][0]


@st.composite
def steps(draw):
    """Return an array's shape and dtype, and a chain of view operations with their arguments."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    array = np.arange(int(np.prod(shape)), dtype=draw(st.sampled_from(["u1", "i2", "f4", "c16"]))).reshape(shape)
    chain = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(
            st.sampled_from(["index", "index", "reshape", "transpose", "permute", "squeeze", "unsqueeze", "expand"])
        )
        if kind == "index":
            index = draw(hnp.basic_indices(array.shape, allow_newaxis=True))
            chain.append((kind, index))
            full = index if isinstance(index, tuple) else (index,)
            array = array[full if any(part is Ellipsis for part in full) else (*full, ...)]
        elif kind == "reshape":
            wanted = draw(st.permutations(array.shape)) if array.ndim else [1]
            chain.append((kind, tuple(wanted)))
            array = array.reshape(wanted)
        elif kind == "transpose" and array.ndim:
            first, second = draw(st.integers(-array.ndim, array.ndim - 1)), draw(st.integers(0, array.ndim - 1))
            chain.append((kind, (first, second)))
            array = array.swapaxes(first, second)
        elif kind == "permute":
            order = tuple(draw(st.permutations(range(array.ndim))))
            chain.append((kind, order))
            array = array.transpose(order)
        elif kind == "squeeze":
            chain.append((kind, ()))
            array = array.squeeze()
        elif kind == "unsqueeze":
            dim = draw(st.integers(-array.ndim - 1, array.ndim))
            chain.append((kind, (dim,)))
            array = np.expand_dims(array, dim)
        elif kind == "expand" and array.size:
            wider = (draw(st.integers(1, 3)), *(draw(st.integers(1, 3)) if n == 1 else n for n in array.shape))
            chain.append((kind, wider))
            array = np.broadcast_to(array, wider)
        if array.size > 5000 or array.ndim > 8:
            break
    return shape, array.dtype, chain


@settings(deadline=None, max_examples=300)
@given(steps())
def test_chained_views_agree_with_numpy(scene):
    shape, dtype, chain = scene
    memory = np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
    ours, array = forebay.from_numpy(memory), memory
    for kind, arguments in chain:
        if kind == "index":
            full = arguments if isinstance(arguments, tuple) else (arguments,)
            ours = ours[arguments]
            array = array[full if any(part is Ellipsis for part in full) else (*full, ...)]
        elif kind == "reshape":
            before = array
            ours, array = ours.reshape(arguments), array.reshape(arguments)
            if array.size and not np.shares_memory(array, before):
                assert ours.data_ptr() != before.__array_interface__["data"][0]
                np.testing.assert_array_equal(ours.numpy(), array)
                return  # both were copied
        elif kind == "transpose":
            ours, array = ours.transpose(*arguments), array.swapaxes(*arguments)
        elif kind == "permute":
            ours, array = ours.permute(*arguments), array.transpose(arguments)
        elif kind == "squeeze":
            ours, array = ours.squeeze(), array.squeeze()
        elif kind == "unsqueeze":
            ours, array = ours.unsqueeze(*arguments), np.expand_dims(array, *arguments)
        else:
            ours, array = ours.expand(*arguments), np.broadcast_to(array, arguments)
        assert_same(ours, array)


def make_tensor():
    return forebay.tensor(np.arange(24, dtype=np.float32).reshape(2, 3, 4))


@pytest.mark.parametrize(
    "index", [5, -3, (0, 3), (0, 0, 0, 0), (..., ..., 0), slice(0.5), slice(None, None, 0), (0, "a"), True]
)  # fmt: skip
def test_invalid_indices_are_rejected(index):
    made = make_tensor()
    with pytest.raises((IndexError, TypeError, ValueError)):
        made[index]


def test_advanced_indexing_is_not_supported():
    made = make_tensor()
    for index in ([0, 1], np.array([0, 1]), made, np.ones((2, 3, 4), bool), (0, [1]), 1.5):
        with pytest.raises(IndexError, match=r"a tensor is indexed by ints, slices, None and \.\.\., not"):
            made[index]


def test_indexing_returns_views():
    made = make_tensor()
    element = made[1, 2, 3]
    element.fill_(99)
    assert element.shape == ()
    assert made.numpy()[1, 2, 3] == 99
    assert made[np.int64(1), ..., -1].tolist() == [15, 19, 99]
    made[0] = 7
    made[1, :, 1:3] = np.array([[1], [2], [3]])
    made[1, 0, 0] = forebay.tensor(5)
    assert made.tolist() == [[[7] * 4] * 3, [[5, 1, 1, 15], [16, 2, 2, 19], [20, 3, 3, 99]]]


def test_view_with_another_shape():
    made = make_tensor()
    for shape in ((6, 4), (-1,), (2, -1, 2)):
        assert made.view(*shape).shape == made.view(shape).shape == made.view(list(shape)).shape
        assert_same(made.view(*shape), made.numpy().reshape(shape))
    assert made[0, 0, 0].view().shape == made[0, 0, 0].view(()).shape == ()
    for wrong in ((5, 5), (-1, -1), (-2, 12), (7, -1)):
        with pytest.raises(RuntimeError, match=r"is invalid for input of size|can be inferred|invalid shape dimension"):
            made.view(*wrong)
    with pytest.raises(RuntimeError, match=r"^view size is not compatible with input tensor's size and stride"):
        made.transpose(0, 2).view(-1)
    assert made.transpose(0, 2).reshape(-1).tolist() == made.numpy().swapaxes(0, 2).reshape(-1).tolist()
    assert made.flatten().data_ptr() == made.data_ptr()


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, "f4", forebay.complex64, np.dtype("i2"), float, "bfloat16"])
def test_view_with_another_dtype(dtype):
    made = make_tensor()
    viewed = made.view(dtype)
    assert viewed.data_ptr() == made.data_ptr()
    assert viewed.nbytes == made.nbytes
    assert viewed.numpy().tobytes() == made.numpy().tobytes()


def test_view_with_mismatching_dtype_raises():
    made = make_tensor()
    with pytest.raises(RuntimeError, match=r"self.size\(-1\) must be divisible by 4 to view Float as ComplexDouble"):
        made[:, :, :3].view(np.complex128)
    with pytest.raises(RuntimeError, match=r"self.stride\(0\) must be divisible by 2 to view Float as ComplexFloat"):
        made.view(-1)[:9].view(3, 3)[:, :2].view(np.complex64)
    with pytest.raises(RuntimeError, match=r"self.stride\(-1\) must be 1 to view Float as Byte .*, but got 12"):
        made.transpose(0, 2).view(np.uint8)


def test_dimension_arguments_of_view_methods():
    made = make_tensor()
    assert made.permute(2, 0, 1).shape == made.permute((2, 0, 1)).shape == (4, 2, 3)
    assert made[0, 0, 0].permute().shape == ()
    assert made.expand(5, -1, -1, -1).shape == made.expand((5, 2, 3, 4)).shape == (5, 2, 3, 4)
    assert made[:1].expand(9, -1, 4).stride(0) == 0
    assert made.unsqueeze(0).squeeze(0).shape == made.unsqueeze(-1).squeeze(1).squeeze().shape == (2, 3, 4)
    with pytest.raises(RuntimeError, match=r"input.dim\(\) = 3 is not equal to len\(dims\) = 2"):
        made.permute(0, 1)
    with pytest.raises(RuntimeError, match=r"the number of sizes provided \(2\) must be greater or equal"):
        made.expand(3, 4)
    with pytest.raises(
        RuntimeError, match=r"^The expanded size of the tensor \(5\) must match the existing size \(2\)"
    ):
        made.expand(5, 3, 4)
    with pytest.raises(IndexError, match=r"Dimension out of range \(expected to be in range of \[-3, 2\], but got 3"):
        made.transpose(0, 3)
    with pytest.raises(IndexError):
        made.squeeze(3)
