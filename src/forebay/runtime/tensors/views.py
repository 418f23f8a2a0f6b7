"""Shapes, strides and offsets of views, by PyTorch's rules and with its errors. Reads no element."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from forebay.runtime.base.torch_types import torch_type

__all__ = [
    "Geometry",
    "as_strided",
    "diagonal",
    "dimension",
    "dimensions",
    "expand",
    "in_order",
    "index",
    "infer_size",
    "moved",
    "narrow",
    "of_dtype",
    "select",
    "slice_of",
    "squeeze",
    "swapped",
    "unfold",
    "unsqueeze",
    "viewed",
]


class Geometry(NamedTuple):
    """The shape of a tensor, the distances of neighbours, and the distance of its first element; both in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def replaced(self, dim: int, count: int, *lengths_and_strides: tuple[int, int], offset: int = 0) -> Geometry:
        """Return the geometry with `count` dimensions from `dim` replaced by others."""
        shape, strides = [*self.shape], [*self.strides]
        shape[dim : dim + count] = [length for length, _ in lengths_and_strides]
        strides[dim : dim + count] = [stride for _, stride in lengths_and_strides]
        return Geometry(tuple(shape), tuple(strides), self.offset + offset)


def dimension(function: str, name: str, dim: Any, rank: int, *, position: int = 1, scalars: bool = True) -> int:
    """Return a dimension from 0.

    Raises TypeError for another type and IndexError, with PyTorch's texts, if there is no such dimension. A scalar has
    the dimension 0 if `scalars` is true.
    """
    if isinstance(dim, bool) or not isinstance(dim, SupportsIndex):
        raise TypeError(f"{function}(): argument '{name}' (position {position}) must be int, not {_type_name(dim)}")
    found = operator.index(dim)
    if not rank and not scalars:
        raise IndexError(f"Dimension specified as {found} but tensor has no dimensions")
    limit = rank or 1
    if not -limit <= found < limit:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], but got {found})"
        )
    return found % limit


def dimensions(function: str, name: str, given: Any) -> tuple[int, ...]:
    """Return ints from `permute(0, 1)` or `permute((0, 1))`. Raises TypeError for other types."""
    parts = given[0] if len(given) == 1 and isinstance(given[0], (list, tuple)) else given
    for at, part in enumerate(parts):
        if not isinstance(part, SupportsIndex) or (isinstance(part, bool) and not at):
            if parts is given and not at:
                text = f"argument '{name}' (position 1) must be tuple of ints, not {_type_name(part)}"
            elif not at:
                text = (
                    f"argument '{name}' (position 1) must be tuple of ints, but found element of type "
                    f"{_type_name(part)} at pos 0"
                )
            else:
                text = (
                    f"argument '{name}' failed to unpack the object at pos {at + 1} with error \"type must be tuple "
                    f'of ints,but got {_type_name(part)}"'
                )
            raise TypeError(f"{function}(): {text}")
    return tuple(map(operator.index, parts))


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ != "numpy" else f"numpy.{kind.__name__}"


# Indices


def index(geometry: Geometry, parts: tuple[Any, ...], itemsize: int, *, alone: bool = False) -> Geometry:
    """Return the view by ints, slices, None and Ellipsis; `alone` is True for one that was not in a tuple."""
    rank = len(geometry.shape)
    used = sum(part is not None and part is not Ellipsis for part in parts)
    if used > rank and not alone:
        raise IndexError(f"too many indices for tensor of dimension {rank}")
    dim = 0
    for position, part in enumerate(parts):
        if dim > len(geometry.shape):  # after a second Ellipsis
            dimension("", "", dim, len(geometry.shape) + 1)
        if part is None:
            geometry = unsqueeze(geometry, dim, itemsize)
            dim += 1
        elif part is Ellipsis:
            dim += rank - used
        elif isinstance(part, slice):
            geometry = slice_of(geometry, dim, part)
            dim += 1
        else:
            geometry = select(geometry, dim, operator.index(part), position)
    return geometry


def select(geometry: Geometry, dim: int, at: int, shown: int | None = None) -> Geometry:
    """Return the view without a dimension, at one of its elements. `shown` is the position in an index."""
    if not geometry.shape:
        if shown is None:
            raise IndexError("select() cannot be applied to a 0-dim tensor.")
        raise IndexError(
            "invalid index of a 0-dim tensor. Use `tensor.item()` in Python or `tensor.item<T>()` in C++ to convert a "
            "0-dim tensor to a number"
        )
    length, stride = geometry.shape[dim], geometry.strides[dim]
    if not -length <= at < length:
        if shown is None:
            raise IndexError(
                f"select(): index {at} out of range for tensor of size {[*geometry.shape]} at dimension {dim}"
            )
        raise IndexError(f"index {at} is out of bounds for dimension {shown} with size {length}")
    return geometry.replaced(dim, 1, offset=at % length * stride)


def slice_of(geometry: Geometry, dim: int, part: slice) -> Geometry:
    """Return the view by a slice of a dimension; its step may be negative, unlike in PyTorch."""
    if not geometry.shape:
        raise IndexError("slice() cannot be applied to a 0-dim tensor.")
    try:
        start, stop, step = part.indices(geometry.shape[dim])
    except TypeError:
        raise TypeError("slice indices must be integers or None or have an __index__ method") from None
    stride = geometry.strides[dim]
    length = max((stop - start + step - (1 if step > 0 else -1)) // step, 0)
    return geometry.replaced(dim, 1, (length, stride * step), offset=max(start, 0) * stride)


def narrow(geometry: Geometry, dim: int, start: int, length: int) -> Geometry:
    """Return the view by a range of a dimension."""
    size = geometry.shape[dim]
    if not -size <= start <= size:
        raise IndexError(f"start out of range (expected to be in range of [-{size}, {size}], but got {start})")
    start += size if start < 0 else 0
    if start > size - length:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    return slice_of(geometry, dim, slice(start, start + length))


# Dimensions


def unsqueeze(geometry: Geometry, dim: int, itemsize: int) -> Geometry:
    """Return the view with a dimension of length 1 before another."""
    at_end = dim == len(geometry.shape)
    stride = itemsize if at_end else geometry.shape[dim] * geometry.strides[dim]
    return geometry.replaced(dim, 0, (1, stride))


def squeeze(geometry: Geometry, dims: Sequence[int]) -> Geometry:
    """Return the view without those of the dimensions whose length is 1."""
    kept = [dim for dim, length in enumerate(geometry.shape) if length != 1 or dim not in dims]
    return in_order(geometry, kept)


def in_order(geometry: Geometry, dims: Sequence[int]) -> Geometry:
    """Return the view of these dimensions."""
    return Geometry(
        tuple(geometry.shape[dim] for dim in dims), tuple(geometry.strides[dim] for dim in dims), geometry.offset
    )


def swapped(geometry: Geometry, dim0: int, dim1: int) -> Geometry:
    """Return the view with two dimensions swapped."""
    order = [*range(len(geometry.shape))]
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return in_order(geometry, order)


def moved(geometry: Geometry, source: Sequence[int], destination: Sequence[int]) -> Geometry:
    """Return the view with dimensions at other positions."""
    places = dict(zip(destination, source, strict=True))
    others = iter([dim for dim in range(len(geometry.shape)) if dim not in source])
    return in_order(geometry, [places[at] if at in places else next(others) for at in range(len(geometry.shape))])


def expand(geometry: Geometry, wanted: tuple[int, ...], itemsize: int, described: str) -> Geometry:
    """Return the view that repeats dimensions of length 1; -1 keeps the length of a dimension.

    `described` is the tensor's type in errors.
    """
    shape, strides, added = [*wanted], [0] * len(wanted), len(wanted) - len(geometry.shape)
    if added < 0:
        rank = len(geometry.shape)
        raise RuntimeError(
            f"expand({described}{{{[*geometry.shape]}}}, size={[*wanted]}): the number of sizes provided "
            f"({len(wanted)}) must be greater or equal to the number of dimensions in the tensor ({rank})"
        )
    following = itemsize
    for at in range(len(wanted) - 1, -1, -1):
        now, stride = (geometry.shape[at - added], geometry.strides[at - added]) if at >= added else (1, following)
        if wanted[at] == -1 and at < added:
            raise RuntimeError(
                f"The expanded size of the tensor (-1) isn't allowed in a leading, non-existing dimension {at}"
            )
        shape[at] = now if wanted[at] == -1 else wanted[at]
        if shape[at] != now:
            if now != 1:
                raise RuntimeError(
                    f"The expanded size of the tensor ({shape[at]}) must match the existing size ({now}) at "
                    f"non-singleton dimension {at}.  Target sizes: {[*wanted]}.  Tensor sizes: {[*geometry.shape]}"
                )
            stride = 0
        strides[at], following = stride, shape[at] * stride
    return Geometry(tuple(shape), tuple(strides), geometry.offset)


def diagonal(geometry: Geometry, offset: int, dim1: int, dim2: int) -> Geometry:
    """Return the view of a diagonal, whose dimension is the last one."""
    lengths, steps = ([values[dim1], values[dim2]] for values in (geometry.shape, geometry.strides))
    length = max(min(lengths[0], lengths[1] - offset) if offset >= 0 else min(lengths[0] + offset, lengths[1]), 0)
    first = offset * steps[1] if offset >= 0 else -offset * steps[0]
    rest = in_order(geometry, [dim for dim in range(len(geometry.shape)) if dim not in (dim1, dim2)])
    return rest.replaced(len(rest.shape), 0, (length, sum(steps)), offset=first if length else 0)


def unfold(geometry: Geometry, dim: int, size: int, step: int) -> Geometry:
    """Return the view of all slices of a length along a dimension; their elements are the last dimension."""
    length, stride = (geometry.shape[dim], geometry.strides[dim]) if geometry.shape else (1, 0)
    if size < 0:
        raise RuntimeError(f"size is {size} but must be >= 0")
    if size > length:
        raise RuntimeError(f"maximum size for tensor at dimension {dim} is {length} but size is {size}")
    if step <= 0:
        raise RuntimeError(f"step is {step} but must be > 0")
    if geometry.shape:
        geometry = geometry.replaced(dim, 1, ((length - size) // step + 1, step * stride))
    return geometry.replaced(len(geometry.shape), 0, (size, stride))


# Other shapes


def infer_size(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the shape with its -1 inferred. Raises RuntimeError if no tensor of this size has it."""
    lengths = [*shape]
    for position, length in enumerate(lengths):
        if length < -1:
            raise RuntimeError(f"invalid shape dimension {length} at index {position} of shape {lengths}")
    if lengths.count(-1) > 1:
        raise RuntimeError("only one dimension can be inferred")
    known = math.prod(length for length in lengths if length != -1)
    if -1 in lengths and not known and not size:
        raise RuntimeError(
            f"cannot reshape tensor of 0 elements into shape {lengths} because the unspecified dimension size -1 "
            "can be any value and is ambiguous"
        )
    if not known or size % known if -1 in lengths else size != known:
        raise RuntimeError(f"shape '{lengths}' is invalid for input of size {size}")
    return tuple(size // known if length == -1 else length for length in lengths)


def viewed(geometry: Geometry, wanted: tuple[int, ...], itemsize: int) -> Geometry | None:
    """Return the view with another shape of as many elements; None if only a copy could have it."""
    shape, size = geometry.shape, math.prod(wanted)
    if not size and shape == wanted:
        return geometry
    if not size or not shape:
        strides = [itemsize] * len(wanted)
        for at in range(len(wanted) - 2, -1, -1):
            strides[at] = strides[at + 1] * (max(wanted[at + 1], 1) if not size else 1)
        return geometry._replace(shape=wanted, strides=tuple(strides))
    strides, at = [0] * len(wanted), len(wanted) - 1
    base, old, new = geometry.strides[-1], 1, 1  # of a run of dimensions that are adjacent in memory
    for dim in range(len(shape) - 1, -1, -1):
        old *= shape[dim]
        if dim and (shape[dim - 1] == 1 or geometry.strides[dim - 1] == old * base):
            continue
        while at >= 0 and (new < old or wanted[at] == 1):
            strides[at] = new * base
            new *= wanted[at]
            at -= 1
        if new != old:
            return None
        if dim:
            base, old, new = geometry.strides[dim - 1], 1, 1
    return geometry._replace(shape=wanted, strides=tuple(strides)) if at < 0 else None


def of_dtype(geometry: Geometry, now: np.dtype[Any], wanted: np.dtype[Any]) -> Geometry:
    """Return the view of the bytes as elements of another type. Raises RuntimeError if there is none."""
    if now.itemsize == wanted.itemsize:
        return geometry
    sizes = now.itemsize, wanted.itemsize
    clause = f"to view {torch_type(now).name} as {torch_type(wanted).name} (different element sizes)"
    if not geometry.shape:
        raise RuntimeError(f"self.dim() cannot be 0 {clause}")
    length = geometry.shape[-1]
    if geometry.strides[-1] != sizes[0] and (sizes[0] > sizes[1] or length * sizes[0] != sizes[1] or length > 1):
        raise RuntimeError(f"self.stride(-1) must be 1 {clause}, but got {geometry.strides[-1] // sizes[0]}")
    if sizes[0] < sizes[1]:
        ratio = sizes[1] // sizes[0]
        if length % ratio:
            raise RuntimeError(f"self.size(-1) must be divisible by {ratio} {clause}, but got {length}")
        if geometry.offset % sizes[1]:
            offset = geometry.offset // sizes[0]
            raise RuntimeError(f"self.storage_offset() must be divisible by {ratio} {clause}, but got {offset}")
        for dim, stride in enumerate(geometry.strides[:-1]):
            if stride % sizes[1]:
                raise RuntimeError(
                    f"self.stride({dim}) must be divisible by {ratio} {clause}, but got {stride // sizes[0]}"
                )
    return geometry.replaced(len(geometry.shape) - 1, 1, (length * sizes[0] // sizes[1], sizes[1]))


def as_strided(size: Sequence[int], stride: Sequence[int], offset: int, itemsize: int, nbytes: int) -> Geometry:
    """Return a view of a storage of `nbytes` by size, stride and offset in elements."""
    if len(size) != len(stride):
        raise RuntimeError("mismatch in length of strides and shape")
    if min(stride, default=0) < 0:
        raise RuntimeError(f"as_strided: Negative strides are not supported at the moment, got strides: {[*stride]}")
    if offset < 0:
        raise RuntimeError(f"Tensor: invalid storage offset {offset}")
    if min(size, default=0) < 0:
        raise RuntimeError(f"Storage size calculation overflowed with sizes={[*size]} and strides={[*stride]}")
    extent = sum((length - 1) * step for length, step in zip(size, stride, strict=True)) + 1
    needed = (offset + extent) * itemsize if math.prod(size) else 0
    if needed > nbytes:
        raise RuntimeError(
            f"setStorage: sizes {[*size]}, strides {[*stride]}, storage offset {offset}, and itemsize {itemsize} "
            f"requiring a storage size of {needed} are out of bounds for storage of size {nbytes}"
        )
    return Geometry(tuple(size), tuple(step * itemsize for step in stride), offset * itemsize)
