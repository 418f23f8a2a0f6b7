"""Options that all tensor factories share: dtype, device, layout, pinned memory, output tensor."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from forebay.device_spec import Device
from forebay.errors import Unsupported
from forebay.layouts import layout, memory_format, strided

__all__ = ["DeviceLike", "check_options", "check_out", "shape_of"]

DeviceLike = Device | str | int | None
_MOST_DIMENSIONS = 64  # of NumPy and PyTorch


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


def check_out(
    function: str, out: Any, shape: Sequence[int], dtype: np.dtype[Any] | None, device: Device | None
) -> None:
    """Raise unless a factory can write its result to `out`."""
    if not hasattr(out, "numpy_dtype"):
        raise TypeError(f"{function}(): argument 'out' must be Tensor, not {type(out).__name__}")
    if dtype is not None and out.numpy_dtype != dtype:
        raise RuntimeError(f"dtype {dtype} does not match dtype of out parameter ({out.dtype})")
    if device is not None and out.device != device:
        raise RuntimeError(f"device {device} does not match device of out parameter ({out.device})")
    if tuple(out.shape) != tuple(shape):
        raise Unsupported(
            f"{function}(): out has shape {list(out.shape)}, not {list(shape)}, and tensors cannot be resized",
            ability="resize",
        )


def shape_of(size: tuple[int | Sequence[int], ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Return the shape that `empty(2, 3)` or `empty((2, 3))` spells.

    Raises
    ------
    TypeError
        If a dimension is not an int.
    ValueError
        If a dimension is negative, if there are more than 64, or if the strides do not fit.
    """
    parts = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
    if any(isinstance(part, (bool, str)) for part in parts):
        raise TypeError(f"a size is made of ints, not {parts!r}")
    shape = tuple(operator.index(part) for part in parts)  # type: ignore[arg-type]  # raises TypeError for the others
    if any(length < 0 for length in shape):
        raise ValueError(f"a size must not be negative: {shape}")
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor has at most {_MOST_DIMENSIONS} dimensions, not {len(shape)}")
    if 0 in shape and math.prod(length or 1 for length in shape) * dtype.itemsize >= 1 << 63:
        raise ValueError(f"an empty tensor of shape {shape} has no strides that fit into 64 bits")
    return shape
