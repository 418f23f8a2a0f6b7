"""Options that all tensor factories share: dtype, device, layout, pinned memory, output tensor."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from forebay._base.byte_sizes import LIMIT
from forebay._base.device_spec import Device
from forebay._base.layouts import layout, memory_format, strided
from forebay.errors import Unsupported
from forebay.runtime.base.torch_types import torch_type

__all__ = ["DeviceLike", "check_options", "check_out", "shape_of"]

DeviceLike = Device | str | int | None
_MOST_DIMENSIONS = 64  # of NumPy


def check_options(
    function: str, layout_: layout | None = None, requires_grad: bool = False, format_: memory_format | None = None
) -> None:
    """Raise for options that need a tensor library."""
    if requires_grad:
        raise Unsupported(f"{function}(): requires_grad=True needs automatic differentiation", ability="autograd")
    if layout_ is not None and layout_ is not strided:
        raise Unsupported(f"{function}(): only forebay.strided tensors exist, not {layout_!r}", ability="layouts")
    if format_ is not None and not isinstance(format_, memory_format):
        raise TypeError(f"{function}(): argument 'memory_format' must be memory_format, not {type(format_).__name__}")


def check_out(function: str, out: Any, dtype: np.dtype[Any] | None, device: Device | None) -> None:
    """Raise unless a factory can write its result to `out`. As in PyTorch, only the device's kind must match."""
    if not hasattr(out, "numpy_dtype"):
        raise TypeError(f"{function}(): argument 'out' must be Tensor, not {type(out).__name__}")
    if dtype is not None and out.numpy_dtype != dtype:
        names = torch_type(dtype).name, torch_type(out.numpy_dtype).name
        raise RuntimeError(f"dtype {names[0]} does not match dtype of out parameter ({names[1]})")
    if device is not None and out.device.kind != device.kind:
        kinds = device.kind, out.device.kind
        raise RuntimeError(f"device type {kinds[0]} does not match device type of out parameter ({kinds[1]})")


def shape_of(
    function: str, sizes: tuple[int | Sequence[int], ...], size: Sequence[int] | None, dtype: np.dtype[Any]
) -> tuple[int, ...]:
    """Return the shape that `empty(2, 3)`, `empty((2, 3))` or `empty(size=(2, 3))` spells.

    Raises
    ------
    TypeError
        If a dimension is not an int, or does not fit into 64 bits.
    RuntimeError
        If a dimension is negative, or if the strides do not fit into 64 bits.
    ValueError
        If there are more than 64 dimensions.
    """
    parts: Any = sizes
    if size is not None:
        parts = _named_size(function, sizes, size)
    elif len(sizes) == 1 and isinstance(sizes[0], (list, tuple)):
        parts = sizes[0]
    elif not sizes:
        raise TypeError(f'{function}() missing 1 required positional arguments: "size"')
    shape = tuple(parts)
    for length in shape:
        if length.__class__ is not int or not 0 <= length < LIMIT:
            shape = _checked(function, shape, as_arguments=parts is sizes)
            break
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor has at most {_MOST_DIMENSIONS} dimensions, not {len(shape)}")
    if 0 in shape and math.prod(length or 1 for length in shape) * dtype.itemsize >= LIMIT:
        raise RuntimeError("Stride calculation overflowed")
    return shape


def _named_size(function: str, sizes: tuple[Any, ...], size: Any) -> Sequence[int]:
    if sizes:
        raise TypeError(f"{function}() got multiple values for argument 'size'")
    if not isinstance(size, (list, tuple)):
        raise TypeError(f"{function}(): argument 'size' must be tuple of ints, not {type(size).__name__}")
    return size


def _checked(function: str, parts: tuple[Any, ...], *, as_arguments: bool) -> tuple[int, ...]:
    """Return the dimensions as ints. Raises for one that is not a dimension, with PyTorch's texts.

    `as_arguments` is True for `empty(2, 3)`, whose first dimension decides how PyTorch reads the arguments.
    """
    shape = []
    for position, part in enumerate(parts):
        try:
            if not position and isinstance(part, bool):
                raise TypeError  # noqa: TRY301 -- the handler below chooses the text
            length = operator.index(part)
        except TypeError:
            raise TypeError(f"{function}(){_not_a_dimension(parts, position, as_arguments=as_arguments)}") from None
        if not -LIMIT <= length < LIMIT:
            raise TypeError(
                f"{function}(): argument 'size' failed to unpack the object at pos {position + 1} with error "
                '"Overflow when unpacking long long'
            )
        shape.append(length)
    negative = next((length for length in shape if length < 0), None)
    if negative is not None:
        if function == "resize_":
            raise RuntimeError("numel: integer multiplication overflow")
        if function == "zeros":
            raise RuntimeError("zeros: Dimension size must be non-negative.")
        raise RuntimeError(f"Trying to create tensor with negative dimension {negative}: {shape}")
    return tuple(shape)


def _not_a_dimension(parts: tuple[Any, ...], position: int, *, as_arguments: bool) -> str:
    name = type(parts[position]).__name__
    if position:
        return (
            f": argument 'size' failed to unpack the object at pos {position + 1} with error "
            f'"type must be tuple of ints,but got {name}"'
        )
    if not as_arguments:
        return f": argument 'size' (position 1) must be tuple of ints, but found element of type {name} at pos 0"
    if len(parts) > 1:
        return f" takes 1 positional argument but {len(parts)} were given"
    return f": argument 'size' (position 1) must be tuple of ints, not {name}"
