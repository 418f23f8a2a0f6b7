"""Conversions between all element types agree with NumPy's casts, element by element."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import forebay
from forebay import DeviceError

pytestmark = [
    pytest.mark.usefixtures("clean"),
    pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning"),
    pytest.mark.filterwarnings("ignore:Casting complex values:UserWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning"),
]
NAMES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
DTYPES = [np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name) for name in NAMES]
INT_LIMITS = [2.0**bits + shift for bits in (7, 8, 15, 16, 31, 32, 63, 64) for shift in (-1, 0, 1, 2048)]
REALS = np.array(
    [0, 0.5, 1, 1.5, 2.5, 300.7, 3e9, 2**53, 1e30, 1e300, np.inf, np.nan, 6e4, 65504, 65519.99, 65520, 1e-8, 2.0**-25,
     2.0**-25 * (1 + 1e-12), 1e-40, 5e-324, 1e-310, 1 + 2.0**-11, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8, 1 + 3 * 2.0**-8,
     *INT_LIMITS]
)  # fmt: skip


def values_of(dtype):
    """Return all values of a short dtype, else limits, special and random values."""
    random = np.random.default_rng(1)
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.itemsize <= 2:
        return np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        few = [
            limits.min,
            limits.min + 1,
            0,
            1,
            255,
            256,
            limits.max // 2,
            limits.max // 2 + 1,
            limits.max - 1,
            limits.max,
        ]
        return np.concatenate([np.array(few, dtype), random.integers(limits.min, limits.max, 3000, dtype)])
    with np.errstate(all="ignore"):
        reals = np.concatenate([REALS, -REALS])
        found = (reals[:, None] + 1j * reals[None, ::5]).ravel() if dtype.kind == "c" else reals
        return np.concatenate([found.astype(dtype), np.frombuffer(random.bytes(3000 * dtype.itemsize), dtype)])


def assert_same(found, expected):
    """Compare the bits, except for those of NaN."""
    real = {"complex64": np.float32, "complex128": np.float64}.get(expected.dtype.name, expected.dtype)
    found, expected = (np.ascontiguousarray(each).view(real) for each in (found, expected))
    bits = f"u{expected.itemsize}"
    with np.errstate(invalid="ignore"):
        same = (found.view(bits) == expected.view(bits)) | (np.isnan(found) & np.isnan(expected))
    wrong = np.flatnonzero(~same)[:5]
    assert same.all(), (wrong, found[wrong], expected[wrong])


@pytest.mark.parametrize("source", DTYPES, ids=NAMES)
@pytest.mark.parametrize("target", DTYPES, ids=NAMES)
def test_conversion_agrees_with_numpy(source, target):
    """NumPy's vector loops differ from its scalar ones for numbers out of range, so the expected array is strided."""
    values = values_of(source)
    expected = np.zeros(2 * len(values), target)[::2]
    np.copyto(expected, values, casting="unsafe")
    tensor = forebay.from_numpy(values)
    assert_same(tensor.to(target).numpy(), expected)
    sparse = np.zeros((len(values), 3), source)
    sparse[:, 1] = values
    found = forebay.zeros(len(values), 2, dtype=target)
    found[:, 1].copy_(forebay.from_numpy(sparse)[:, 1])
    assert_same(found.numpy()[:, 1], expected)
    assert not found.numpy()[:, 0].any()
    unaligned = np.zeros(values.nbytes + 1, np.uint8)[1:].view(source)
    unaligned[...] = values
    assert_same(forebay.from_numpy(unaligned).to(target).numpy(), expected)


def test_foreign_bools_are_true():
    """A byte of NumPy's bool may have any value but 0 for true."""
    foreign = forebay.tensor(np.array([0, 1, 2, 255], np.uint8)).view("bool")
    for name in ("uint8", "int64", "float16", "float32", "complex64"):
        assert foreign.to(name).tolist() == [0, 1, 1, 1]


LAYOUT_DTYPES = [np.dtype(name) for name in ("uint8", "int16", "float32", "float64", "complex128")]


@st.composite
def views(draw, shape):
    """Draw a function that returns a view of an array or a tensor of the shape."""
    index = draw(arrays.basic_indices(shape, allow_newaxis=False, allow_ellipsis=False))
    whole = (*(index if isinstance(index, tuple) else (index,)), ...)  # an array, also if it has no axis
    return lambda memory: memory[whole]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_layouts_agree_with_numpy(data):
    """Copies between views of two arrays, or of one array."""
    shape = data.draw(arrays.array_shapes(max_dims=4, max_side=5))
    to, from_ = data.draw(st.sampled_from(LAYOUT_DTYPES)), data.draw(st.sampled_from(LAYOUT_DTYPES))
    ours = np.arange(np.prod(shape)).reshape(shape).astype(to)
    theirs = ours if data.draw(st.booleans()) else -ours.astype(from_)
    view, other = data.draw(views(shape)), data.draw(views(shape))
    expected = ours.copy()
    source = np.array(other(theirs))
    order = data.draw(st.permutations(range(view(expected).ndim)))
    target = view(expected).transpose(order)
    copy = view(forebay.from_numpy(ours)).permute(*order).copy_
    try:
        np.copyto(target, np.broadcast_to(source, target.shape), casting="unsafe")
    except ValueError:
        with pytest.raises(RuntimeError, match=r"must match the size|doesn't match the broadcast shape"):
            copy(other(forebay.from_numpy(theirs)))
        return
    copy(other(forebay.from_numpy(theirs)))
    forebay.synchronize("cpu")
    assert ours.tobytes() == expected.tobytes()


def test_overlapping_source_that_does_not_fit_into_memory_fails():
    huge = forebay.zeros(1).expand(1 << 46)
    huge.copy_(huge[...])
    with pytest.raises(DeviceError, match="failed with code 2"):
        forebay.synchronize("cpu")


CAST = """
import warnings, forebay
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    numbers = forebay.ones(2, dtype="complex64")
    numbers.to(bool), numbers.to("complex128"), numbers.to("float32"), numbers.to("int8")
    forebay.synchronize()
print([(each.category.__name__, str(each.message)) for each in caught])
"""


def test_discarding_imaginary_parts_warns_once():
    """As PyTorch."""
    done = subprocess.run([sys.executable, "-c", CAST], capture_output=True, text=True, check=True)
    assert done.stdout == "[('UserWarning', 'Casting complex values to real discards the imaginary part')]\n"
