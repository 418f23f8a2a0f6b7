"""Tests of the ability StridedCopies: layouts, conversions, fills, overlapping memory, and capture."""

from __future__ import annotations

import warnings
from typing import Any, Protocol, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from forebay.errors import WrongState
from forebay.spi import Captures, Port, Queue, StridedCopies, StridedCopy
from forebay.testing.conformance.helpers import Scratch, drain, needs, needs_memory, read_back

__all__ = [
    "test_captured_strided_copy_runs_at_launch",
    "test_conversions_agree_with_numpy",
    "test_fill_writes_an_element",
    "test_invalid_strided_copies_are_rejected",
    "test_overlapping_source_is_read_first",
    "test_strided_copy_transposes",
]

_NAMES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
_NUMBERS = (0, 1, 2, 100, 127)  # that every type but bool represents


class _Queue(StridedCopies, Queue, Protocol):
    """A queue with the ability StridedCopies."""


def _new_queue(port: Port) -> _Queue:
    return cast("_Queue", port.queue())


@needs(StridedCopies)
@needs_memory
def test_strided_copy_transposes(port: Port) -> None:
    queue, source, target = _new_queue(port), Scratch(port, b"abcdefghijkl"), Scratch(port, bytes(12))
    queue.copy_strided(StridedCopy((2, 3), target.address, (6, 2), "", 2, source.address, (2, 4)))
    assert read_back(queue, target) == b"abefijcdghkl"
    last = target.address + 10
    queue.copy_strided(StridedCopy((2, 3), last, (-6, -2), "", 2, source.address, (0, 4)))
    assert read_back(queue, target) == b"ijefab" * 2


@needs(StridedCopies)
@needs_memory
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 10, 16])
def test_fill_writes_an_element(port: Port, size: int) -> None:
    queue, memory, value = _new_queue(port), Scratch(port, b"." * size * 10), bytes(range(65, 65 + size))
    queue.copy_strided(StridedCopy((2, 2), memory.address + 8 * size, (-4 * size, -2 * size), "", size, value=value))
    expected = (b"." * 2 * size) + (value + b"." * size) * 4
    assert read_back(queue, memory) == expected
    queue.copy_strided(StridedCopy((10,), memory.address, (size,), "", size, value=value))
    assert read_back(queue, memory) == value * 10
    queue.copy_strided(StridedCopy((), memory.address, (), "", size, value=b"!" * size))
    assert read_back(queue, memory) == b"!" * size + value * 9


@needs(StridedCopies)
@needs_memory
@pytest.mark.parametrize("source_name", _NAMES)
def test_conversions_agree_with_numpy(port: Port, source_name: str) -> None:
    values: NDArray[Any] = np.array(_NUMBERS).astype(source_name)
    queue, source = _new_queue(port), Scratch(port, values.tobytes())
    for name in _NAMES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
            expected = values.astype(name)
        if name == source_name:
            continue
        size, target = expected.itemsize, Scratch(port, bytes(expected.nbytes))
        queue.copy_strided(
            StridedCopy((5,), target.address, (size,), name, size, source.address, (values.itemsize,), source_name)
        )
        assert np.frombuffer(read_back(queue, target), name).tolist() == expected.tolist()


@needs(StridedCopies)
@needs_memory
def test_overlapping_source_is_read_first(port: Port) -> None:
    queue, memory = _new_queue(port), Scratch(port, b"abcdef")
    base = memory.address
    queue.copy_strided(StridedCopy((6,), base, (1,), "", 1, base + 5, (-1,), may_overlap=True))
    assert read_back(queue, memory) == b"fedcba"
    queue.copy_strided(StridedCopy((2, 2), base + 1, (2, 1), "", 1, base, (2, 1), may_overlap=True))
    assert read_back(queue, memory) == b"ffedca"


@needs(StridedCopies)
def test_invalid_strided_copies_are_rejected(port: Port) -> None:
    queue, memory = _new_queue(port), Scratch(port, bytes(16))
    valid = StridedCopy((2,), memory.address, (8,), "float64", 8, memory.address, (4,), "float32", may_overlap=True)
    for invalid in (
        {"to": 0},
        {"source": 0},
        {"element": "float12"},
        {"source_element": "float12"},
        {"value": b"x"},
        {"source_element": "", "value": b"x"},
        {"to_strides": ()},
        {"source_element": "", "itemsize": 0},
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - the text is the backend's
            queue.copy_strided(valid._replace(**invalid))
    assert queue.idle()
    queue.copy_strided(valid)
    drain(queue)
    queue.close()
    with pytest.raises(WrongState):
        queue.copy_strided(valid)


@needs(StridedCopies, Captures)
@needs_memory
def test_captured_strided_copy_runs_at_launch(port: Port) -> None:
    queue, memory = _new_queue(port), Scratch(port, b"abcd....")
    assert isinstance(queue, Captures)
    recorded = queue.begin_capture()
    queue.copy_strided(StridedCopy((4,), memory.address + 4, (1,), "", 1, memory.address + 3, (-1,)))
    queue.copy_strided(StridedCopy((2,), memory.address, (2,), "", 1, value=b"x"))
    queue.end_capture()
    assert [piece.op for piece in recorded.work] == ["strided", "strided"]
    assert read_back(queue, memory) == b"abcd...."
    recorded.launch(queue)
    assert read_back(queue, memory) == b"xbxddcba"
    recorded.launch(queue)
    assert read_back(queue, memory) == b"xbxddxbx"
