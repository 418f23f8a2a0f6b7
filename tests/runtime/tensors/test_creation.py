"""Tensor factories: dtypes, sizes, devices, copied and shared data."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

import forebay
from forebay import OutOfMemory, memory
from forebay._base.device_spec import Device

pytestmark = pytest.mark.usefixtures("clean")

DTYPES = [
    forebay.bool,
    *(getattr(forebay, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(getattr(forebay, f"float{bits}") for bits in (16, 32, 64)),
    forebay.complex64,
    forebay.complex128,
    forebay.bfloat16,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_creation_functions_accept_every_dtype(dtype):
    made = forebay.tensor([[1, 0], [3, 4]], dtype=dtype)
    assert made.dtype == dtype
    assert made.itemsize == made.element_size() == dtype.itemsize
    np.testing.assert_array_equal(made.numpy(), np.array([[1, 0], [3, 4]], dtype))
    assert not forebay.zeros(3, dtype=dtype).numpy().any()
    assert forebay.full((3,), 1, dtype=dtype).tolist() == [1, 1, 1]
    assert forebay.empty(3, dtype=dtype).nbytes == 3 * dtype.itemsize


@pytest.mark.parametrize(
    ("argument", "dtype"),
    [
        (None, np.float32),
        (float, np.float64),
        (int, np.int64),
        (bool, np.bool_),
        ("f2", np.float16),
        (">i4", np.dtype(">i4")),
        (np.uint16, np.uint16),
        ("bfloat16", ml_dtypes.bfloat16),
        ([("x", "f4"), ("y", "i8")], np.dtype([("x", "f4"), ("y", "i8")])),
        ("S5", np.dtype("S5")),
    ],
)
def test_dtype_argument_accepts_numpy_forms(argument, dtype):
    assert forebay.empty(2, dtype=argument).dtype == dtype
    assert not forebay.zeros(2, dtype=argument).numpy().tobytes().strip(b"\0")


@pytest.mark.parametrize(
    "dtype", [object, "O", [("x", "O")], np.dtypes.StringDType(), "U", "S", "V0", ("f4", (2,)), "bananas", 7]
)
def test_unsupported_dtypes_are_rejected(dtype):
    with pytest.raises(TypeError):
        forebay.empty(2, dtype=dtype)


def test_size_argument_forms():
    for made in (forebay.empty(2, 3), forebay.empty((2, 3)), forebay.empty([2, 3]), forebay.zeros(np.int64(2), 3)):
        assert made.shape == (2, 3)
    assert forebay.empty(size=(2, 3)).shape == forebay.rand(size=[2, 3]).shape == (2, 3)
    assert forebay.empty(()).shape == ()
    assert forebay.full((3,), 1).shape == forebay.full([3], 1).shape == (3,)


@pytest.mark.parametrize(
    "size", [(2.0,), ("23",), (True,), (None,), ([2, 3], 4), (np.array([2, 3]),), ({2, 3},), (int,), (0, 1 << 70), ()]
)
def test_sizes_of_wrong_type_are_rejected(size):
    with pytest.raises(TypeError):
        forebay.empty(*size)


@pytest.mark.parametrize(
    ("size", "error", "words"),
    [
        ((-1,), RuntimeError, r"^Trying to create tensor with negative dimension -1: \[-1\]$"),
        ((2, -3), RuntimeError, "negative dimension -3"),
        ((0, 1 << 62), RuntimeError, "^Stride calculation overflowed$"),
        ((0, 1 << 32, 1 << 32), RuntimeError, "^Stride calculation overflowed$"),
        ((1 << 62, 1 << 62), RuntimeError, "^Storage size calculation overflowed with sizes="),
        ((1,) * 65, ValueError, "at most 64 dimensions"),
    ],
)
def test_invalid_sizes_are_rejected(size, error, words):
    with pytest.raises(error, match=words):
        forebay.empty(*size)


@pytest.mark.parametrize("size", [(1 << 60,), (1 << 31, 1 << 31), (1 << 62,)])
def test_excessive_sizes_raise_out_of_memory(size):
    for make in (forebay.empty, forebay.zeros, lambda *size, **key: forebay.full(size, 1, **key)):
        with pytest.raises(OutOfMemory, match="more than 1EB"):
            make(*size, dtype=forebay.uint8)


@pytest.mark.parametrize("size", [(0,), (3, 0, 2), (0, 1 << 40)])
def test_empty_tensors_allocate_no_memory(size):
    before = memory.memory_stats("cpu")
    made = forebay.full(size, 7.0)
    assert (made.numel(), made.nbytes, made.data_ptr(), made.numpy().shape) == (0, 0, 0, size)
    assert made.clone().shape == made.to(dtype=int).shape == size
    assert memory.memory_stats("cpu") == before


def test_scalar_gives_a_tensor_without_dimensions():
    made = forebay.tensor(3)
    assert (made.shape, made.ndim, made.numel(), made.item(), made.tolist()) == ((), 0, 1, 3, 3)
    assert made.stride() == ()


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (1, np.int64),
        (1.5, np.float32),
        (1j, np.complex64),
        (True, np.bool_),
        ([], np.float32),
        ([1, 2.5], np.float32),
        ([[True], [False]], np.bool_),
        (range(3), np.int64),
        (np.float64(1.5), np.float64),
        (np.arange(3.0), np.float64),
        (np.ones(2, ml_dtypes.bfloat16), ml_dtypes.bfloat16),
        (memoryview(b"abc"), np.int64),
    ],
)
def test_tensor_infers_the_dtype_of_its_data(data, dtype):
    made = forebay.tensor(data)
    assert made.dtype == dtype
    np.testing.assert_array_equal(made.numpy(), np.asarray(data, dtype))


@pytest.mark.parametrize(
    ("value", "dtype"), [(1, np.int64), (1.5, np.float32), (True, np.bool_), (1j, np.complex64), (-0.0, np.float32)]
)
def test_full_infers_the_dtype_of_its_value(value, dtype):
    made = forebay.full((2,), value)
    assert made.dtype == dtype
    assert made.numpy().tobytes() == np.full(2, value, dtype).tobytes()


@pytest.mark.parametrize("data", [[[1], [2, 3]], object(), "abc", {1: 2}, ["1", "b"]])
def test_invalid_data_is_rejected(data):
    with pytest.raises((TypeError, ValueError)):
        forebay.tensor(data, dtype=forebay.float32)


def test_tensor_copies_its_data():
    array = np.arange(3)
    for source in (array, forebay.from_numpy(array)):
        made = forebay.tensor(source)
        forebay.synchronize()
        array[0] += 7
        assert made.tolist() == [array[0] - 7, 1, 2]
    assert forebay.tensor(forebay.tensor([1.5]), dtype=int, device="cpu").tolist() == [1]


def test_device_argument_selects_the_device(fake):
    assert forebay.empty(1).device == Device("cpu")
    assert forebay.empty(1, device="fake").device == Device("fake:0")
    assert forebay.zeros(1, device=Device("fake", 1)).device == Device("fake:1")
    with forebay.use_device("fake:1"):
        assert forebay.full((2,), 1).device == Device("fake:1")
        assert forebay.empty(1, device=0).device == Device("fake:0")
        assert forebay.from_numpy(np.ones(1)).device == Device("cpu")


def test_from_numpy_shares_the_array():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    shared = forebay.from_numpy(array[:, ::2])
    assert shared.data_ptr() == array.__array_interface__["data"][0]
    array[1, 2] = 99
    assert shared.tolist() == [[0, 2], [3, 99]]
    shared.fill_(5)
    forebay.synchronize()
    assert array.tolist() == [[5, 1, 5], [5, 4, 5]]
    assert forebay.from_numpy(array[::-1]).tolist() == array[::-1].tolist()


def test_from_numpy_keeps_the_array_alive():
    array = np.ones(3)
    reference = weakref.ref(array)
    shared = forebay.from_numpy(array)
    del array
    part = shared[1:]
    del shared
    gc.collect()
    assert part.tolist() == [1, 1]
    del part
    gc.collect()
    assert reference() is None


def test_from_numpy_rejects_invalid_arrays():
    with pytest.raises(TypeError, match=r"expected np\.ndarray \(got list\)"):
        forebay.from_numpy([1, 2])
    with pytest.raises(TypeError, match=r"^can't convert np\.ndarray of type numpy\.object_"):
        forebay.from_numpy(np.array([None]))
    records = np.zeros(3, [("a", "i1"), ("b", "f4")])
    with pytest.raises(ValueError, match="copy it first"):
        forebay.from_numpy(records["b"])
    frozen = np.arange(3)
    frozen.flags.writeable = False
    with pytest.warns(UserWarning, match="read-only"):
        assert forebay.from_numpy(frozen).tolist() == [0, 1, 2]


def test_bfloat16_requires_ml_dtypes(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(AttributeError, match=r"pip install ml_dtypes"):
        _ = forebay.bfloat16
    scope = {}
    exec("from forebay import *", scope)
    assert "zeros" in scope
    with pytest.raises(AttributeError, match="no attribute 'bananas'"):
        _ = forebay.bananas
