"""Strided copies on the calling thread, and the check of their arguments."""

from __future__ import annotations

import numpy as np
import pytest

from forebay.backends.common import strided_copy_encoding
from forebay.backends.common.strided_copy_encoding import copy_strided_now, pack_strided_copy, touched_spans
from forebay.errors import DeviceError
from forebay.spi import StridedCopy


def copy_of(to: np.ndarray, source: np.ndarray, /, **changes: object) -> StridedCopy:
    converted = source.dtype.name if source.dtype != to.dtype else ""
    return StridedCopy(
        to.shape, to.ctypes.data, to.strides, to.dtype.name, to.itemsize, source.ctypes.data, source.strides, converted
    )._replace(**changes)


def test_elements_are_copied_converted_and_filled():
    source = np.arange(12, dtype="i4").reshape(3, 4)
    copied, converted, filled = np.zeros((4, 3), "i4"), np.zeros((3, 2)), np.zeros((3, 4), "i4")
    copy_strided_now(copy_of(copied.T, source))
    copy_strided_now(copy_of(converted, source[::-1, ::2]))
    copy_strided_now(copy_of(filled[:, 1::2], source[:, :2], source=0, source_strides=(), value=b"\1\0\0\0"))
    np.testing.assert_array_equal(copied, source.T)
    np.testing.assert_array_equal(converted, source[::-1, ::2])
    assert filled.tolist() == [[0, 1, 0, 1]] * 3


def test_overlapping_elements_are_read_before_they_are_written():
    numbers = np.arange(6)
    copy_strided_now(copy_of(numbers[1:], numbers[:-1], may_overlap=True))
    assert numbers.tolist() == [0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "changes",
    [
        {"to": 0},
        {"source": 0},
        {"itemsize": 0},
        {"to": -1},
        {"to": 1 << 64},
        {"shape": (3, 1)},
        {"source_strides": ()},
        {"source_element": "float128"},
        {"element": "datetime64", "source_element": "int64"},
        {"value": b"12"},
        {"shape": (3,) * 300, "to_strides": (0,) * 300, "source_strides": (0,) * 300},
    ],
    ids=str,
)
def test_invalid_copy_is_refused_and_copies_nothing(changes):
    source, to = np.arange(3), np.zeros(3, "i8")
    with pytest.raises(ValueError, match=r"StridedCopy\(shape="):
        pack_strided_copy(copy_of(to, source, **changes))
    assert to.tolist() == [0, 0, 0]


def test_too_many_axes_are_refused_by_the_core():
    source, to = np.arange(3), np.zeros(3, "i8")
    many = {"shape": (1,) * 65, "to_strides": (8,) * 65, "source_strides": (8,) * 65}
    with pytest.raises(ValueError, match=r"^invalid strided copy: "):
        copy_strided_now(copy_of(to, source, **many))
    assert to.tolist() == [0, 0, 0]


def test_missing_memory_is_an_error_of_the_device(monkeypatch):
    monkeypatch.setattr(strided_copy_encoding, "_run_now", lambda packed, nbytes: 2)
    numbers = np.arange(3)
    with pytest.raises(DeviceError, match="no memory to buffer the source of an overlapping copy") as caught:
        copy_strided_now(copy_of(numbers[1:], numbers[:-1], may_overlap=True))
    assert (caught.value.code, caught.value.call) == (2, "copy_strided")


def test_spans_include_gaps_and_negative_strides():
    table = np.zeros((4, 6), "i4")
    source = table[::-1, ::2]
    base = table.ctypes.data
    to = np.zeros((4, 3))
    assert touched_spans(copy_of(to, source)) == [(to.ctypes.data, 96), (base, 92)]
    filled = copy_of(table[:, 1], source, source=0, source_strides=(), source_element="", value=bytes(4))
    assert touched_spans(filled) == [(base + 4, 76)]
