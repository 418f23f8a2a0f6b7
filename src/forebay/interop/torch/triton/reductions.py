"""Reductions and scans with a function of the kernel, over whole rows at a time.

Triton's interpreter calls the function for each element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["combined", "scanned"]

_Arrays = list[np.ndarray[Any, Any]]
_Call = Callable[..., Any]  # with the function of the kernel and its arguments


def combined(operation: Any, tensors: Sequence[Any], call: _Call) -> list[Any]:
    """Return the reduction of tensors, as `ReduceOps.generic_reduce` of Triton's interpreter."""
    axis = operation.axis
    arrays = [each.handle.data for each in tensors]
    if axis is None:
        arrays, axis = [each.reshape(-1) for each in arrays], 0
    dimensions = tensors[0].handle.data.ndim
    axis %= arrays[0].ndim
    while arrays[0].shape[axis] > 1:  # a power of two: neighbours, as the function need not be commutative
        one, other = ([each[_at(axis, slice(first, None, 2))] for each in arrays] for first in (0, 1))
        arrays = _combine(operation, tensors, one, other, call)
    results = [np.squeeze(each, axis) for each in arrays]
    if operation.keep_dims:
        shape = (1,) * dimensions if operation.axis is None else None
        results = [each.reshape(shape) if shape else np.expand_dims(each, axis) for each in results]
    return [operation.to_tensor(each if each.shape else each.item(), one.dtype)
            for each, one in zip(results, tensors, strict=True)]  # fmt: skip


def scanned(operation: Any, tensors: Sequence[Any], call: _Call) -> list[Any]:
    """Return the scan of tensors, as `ScanOps.generic_scan` of Triton's interpreter."""
    arrays = [each.handle.data for each in tensors]
    axis, distance = operation.axis % arrays[0].ndim, 1
    while distance < arrays[0].shape[axis]:
        before = [np.roll(each, distance, axis) for each in arrays]
        found = _combine(operation, tensors, before, arrays, call)
        first = _at(axis, slice(distance))  # nothing is that far before them
        for made, array in zip(found, arrays, strict=True):
            made[first] = array[first]
        arrays, distance = found, 2 * distance
    return [operation.to_tensor(each, one.dtype) for each, one in zip(arrays, tensors, strict=True)]


def _combine(operation: Any, tensors: Sequence[Any], one: _Arrays, other: _Arrays, call: _Call) -> _Arrays:
    given = [operation.to_tensor(each, kind.dtype) for arrays in (one, other)
             for each, kind in zip(arrays, tensors, strict=True)]  # fmt: skip
    found = call(operation.combine_fn, *given)
    results = found if isinstance(found, (tuple, list)) else (found,)
    return [np.broadcast_to(each.handle.data, one[0].shape).astype(array.dtype) if hasattr(each, "handle")
            else np.full(one[0].shape, each, array.dtype)
            for each, array in zip(results, one, strict=True)]  # fmt: skip


def _at(axis: int, part: slice) -> tuple[Any, ...]:
    return (*(slice(None) for _ in range(axis)), part)
