"""Which bytes a strided view is of, and a copy between two such as copies of unbroken runs of bytes. Reads nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["MOST", "Run", "address_of", "are_alike", "is_unbroken", "overlap", "runs", "spans"]

Run = tuple[int, int, int]  # to, from, how many bytes

MOST = 4096  # where there is no other way: a hundredth of a second
_FEW = 8  # a command costs 2 µs, and one pass by NumPy about ten
_LONG = 1 << 18  # bytes; so many are worth a command


def is_unbroken(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Whether the elements follow each other, the last dimension's first; so does what has none."""
    step = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != step and length != 1:
            return 0 in shape
        step *= length
    return True


def are_alike(target: Tensor, source: Tensor) -> bool:
    """Whether a copy is one of bytes: both unbroken, of one dtype and shape, and apart from each other."""
    return (
        target.dtype == source.dtype
        and target.shape == source.shape
        and target.is_contiguous()
        and source.is_contiguous()
        and abs(target.data_ptr() - source.data_ptr()) >= target.nbytes > 0
    )


def overlap(target: NDArray[Any], source: NDArray[Any]) -> bool:
    """Whether they share an element; True, too, where it takes long to find out."""
    try:
        return np.shares_memory(target, source, max_work=1000)  # type: ignore[arg-type]  # the stub is too strict
    except np.exceptions.TooHardError:
        return True


def runs(target: NDArray[Any], source: NDArray[Any], *, at_most: int = _FEW) -> Iterable[Run] | None:
    """The copies of unbroken bytes that make up this one; None when there are more than `at_most`, and short."""
    inner, nbytes = target.ndim, target.itemsize
    while inner and target.strides[inner - 1] == source.strides[inner - 1] == nbytes:
        inner -= 1
        nbytes *= target.shape[inner]
    at, from_ = address_of(target), address_of(source)
    if not inner:
        return [(at, from_, nbytes)]
    outer = target.shape[:inner]
    if math.prod(outer) > (MOST if nbytes >= _LONG else at_most):
        return None
    return (
        (at + int(np.dot(index, target.strides[:inner])), from_ + int(np.dot(index, source.strides[:inner])), nbytes)
        for index in np.ndindex(outer)
    )


def spans(array: NDArray[Any]) -> list[tuple[int, int]]:
    """Where its elements are, as addresses and numbers of bytes: each run, or from the first byte to the last."""
    if (found := runs(array, array)) is not None:
        return [(at, nbytes) for at, _, nbytes in found]
    low, end = np.lib.array_utils.byte_bounds(array)
    return [(low, end - low)]


def address_of(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
