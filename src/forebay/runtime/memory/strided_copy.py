"""Byte ranges of strided views, and copies between views as copies of contiguous runs. Reads no element."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = [
    "MAX_RUNS",
    "Run",
    "address_of",
    "byte_ranges",
    "contiguous_runs",
    "is_c_contiguous",
    "is_plain_copy",
    "may_overlap",
]

Run = tuple[int, int, int]  # target address, source address, bytes

MAX_RUNS = 4096  # runs, when nothing else can copy: 10 ms
_CHEAP_RUNS = 8  # runs: a command costs 2 µs, a NumPy copy about 10 µs
_LONG_RUN = 1 << 18  # bytes, from which a run is copied by a separate command


def is_c_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Return True if the elements are contiguous in C order; an empty array is."""
    step = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != step and length != 1:
            return 0 in shape
        step *= length
    return True


def is_plain_copy(target: Tensor, source: Tensor) -> bool:
    """Return True if one copy of bytes suffices: both contiguous, same dtype and shape, no overlap, not empty."""
    return (
        target.numpy_dtype == source.numpy_dtype
        and target.shape == source.shape
        and target.is_contiguous()
        and source.is_contiguous()
        and abs(target.data_ptr() - source.data_ptr()) >= target.nbytes > 0
    )


def may_overlap(target: NDArray[Any], source: NDArray[Any]) -> bool:
    """Return True if the arrays share an element, or if that is too expensive to determine."""
    try:
        return np.shares_memory(target, source, max_work=1000)  # type: ignore[arg-type]  # the stub is too strict
    except np.exceptions.TooHardError:
        return True


def contiguous_runs(target: NDArray[Any], source: NDArray[Any], *, max_runs: int = _CHEAP_RUNS) -> Iterable[Run] | None:
    """Return the contiguous runs of a copy; None if there are more than `max_runs` short ones, or 4096 long ones."""
    inner, nbytes = target.ndim, target.itemsize
    while inner and target.strides[inner - 1] == source.strides[inner - 1] == nbytes:
        inner -= 1
        nbytes *= target.shape[inner]
    to, from_ = address_of(target), address_of(source)
    if not inner:
        return [(to, from_, nbytes)]
    outer = target.shape[:inner]
    if math.prod(outer) > (MAX_RUNS if nbytes >= _LONG_RUN else max_runs):
        return None
    return (
        (to + int(np.dot(index, target.strides[:inner])), from_ + int(np.dot(index, source.strides[:inner])), nbytes)
        for index in np.ndindex(outer)
    )


def byte_ranges(array: NDArray[Any]) -> list[tuple[int, int]]:
    """Return (address, bytes) of each contiguous run of the array, or one range over all if there are many runs."""
    if (runs := contiguous_runs(array, array)) is not None:
        return [(address, nbytes) for address, _, nbytes in runs]
    low, end = np.lib.array_utils.byte_bounds(array)
    return [(low, end - low)]


def address_of(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
