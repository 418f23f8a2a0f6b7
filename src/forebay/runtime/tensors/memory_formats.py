"""Memory formats: the orders of dimensions in memory that copies and factories can be asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay._base.layouts import channels_last, channels_last_3d, contiguous_format, memory_format, preserve_format
from forebay.errors import ForebayError
from forebay.runtime.memory.strided_copy import is_c_contiguous, slowest_first

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = [
    "check_format",
    "inverse",
    "is_contiguous_in",
    "is_dense",
    "order_in",
    "order_of_copy",
    "packed_strides",
    "strides_of_copy",
    "suggested_format",
]

_ORDERS = {channels_last: (0, 2, 3, 1), channels_last_3d: (0, 2, 3, 4, 1)}  # the slowest dimension first


def check_format(function: str, given: object) -> None:
    """Raise TypeError unless the argument is a memory format."""
    if not isinstance(given, memory_format):
        raise TypeError(
            f"{function}(): argument 'memory_format' must be forebay.memory_format, not {type(given).__name__}"
        )


def order_in(format_: memory_format, rank: int) -> tuple[int, ...] | None:
    """Return the dimensions of a tensor in this format, slowest first; None for the order of the dimensions.

    Raises ForebayError if the format is one for another number of dimensions.
    """
    order = _ORDERS.get(format_)
    if order is not None and len(order) != rank:
        name = repr(format_).rpartition(".")[2]
        raise ForebayError(f"required rank {len(order)} tensor to use {name} format")
    return order


def order_of_copy(tensor: Tensor, format_: memory_format) -> Sequence[int] | None:
    """Return the dimensions of a copy of the tensor in this format, slowest first; None for their own order."""
    if format_ is not preserve_format:
        return order_in(format_, tensor.ndim)
    if tensor.is_contiguous():
        return None
    order = slowest_first(tensor.shape, tensor.byte_strides)
    return None if order == sorted(order) else order


def packed_strides(shape: Sequence[int], itemsize: int, order: Sequence[int] | None) -> tuple[int, ...]:
    """Return the strides in bytes of a tensor without gaps, whose dimensions are in memory in this order."""
    strides, step = [0] * len(shape), itemsize
    for dim in reversed(range(len(shape)) if order is None else order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def is_dense(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Return True if the elements are adjacent in memory in some order of the dimensions."""
    if is_c_contiguous(tuple(shape), tuple(strides), itemsize):
        return True
    step = itemsize
    for stride, length in sorted((stride, length) for stride, length in zip(strides, shape, strict=True) if length > 1):
        if stride != step:
            return False
        step *= length
    return True


def strides_of_copy(tensor: Tensor, format_: memory_format, itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes of a copy of the tensor in this format; the tensor's own if it has no gaps."""
    shape, strides = tensor.shape, tensor.byte_strides
    if format_ is not preserve_format:
        return packed_strides(shape, itemsize, order_in(format_, len(shape)))
    if is_dense(shape, strides, tensor.itemsize):
        return tuple(stride // tensor.itemsize * itemsize for stride in strides) if tensor.itemsize else strides
    return packed_strides(shape, itemsize, slowest_first(shape, strides))


def inverse(order: Sequence[int]) -> list[int]:
    """Return the permutation that undoes this one."""
    return sorted(range(len(order)), key=order.__getitem__)


def is_contiguous_in(tensor: Tensor, format_: memory_format) -> bool:
    """Return True if the elements are adjacent in memory in this order."""
    order = _ORDERS.get(format_)
    if order is None:
        return tensor.is_contiguous()
    if len(order) != tensor.ndim:
        return False
    step = tensor.itemsize
    for dim in reversed(order):
        length = tensor.shape[dim]
        if length != 1:
            if tensor.byte_strides[dim] != step:
                return False
            step *= length
    return True


def suggested_format(tensor: Tensor) -> memory_format:
    """Return the format that PyTorch infers from strides: of channels, if they can be in that order and no other."""
    for format_, order in _ORDERS.items():
        if len(order) == tensor.ndim and _has_order(tensor, order):
            return format_
    return contiguous_format


def _has_order(tensor: Tensor, order: tuple[int, ...]) -> bool:
    strides, least = tensor.byte_strides, 0
    if strides[1] == 0:
        return False
    for dim in reversed(order):
        length = tensor.shape[dim]
        if length == 0 or strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * max(length, 1)
    return True
