"""Factories that few programs use: strided memory, buffers, sequences of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from forebay._base.device_spec import DeviceLike
from forebay._base.dtypes import DTypeLike, as_dtype
from forebay._base.layouts import layout, strided
from forebay.runtime.tensors import creation, views
from forebay.runtime.tensors.options import check_options
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["asarray", "empty_strided", "eye", "frombuffer", "linspace", "scalar_tensor", "strided_tensor"]


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: DTypeLike | None = None,
    layout: layout = strided,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create an uninitialised tensor with given strides.

    As `torch.empty_strided`.

    Parameters
    ----------
    size : sequence of int
        The shape.
    stride : sequence of int
        The distances of neighbours, in elements.
    dtype, layout, device, requires_grad, pin_memory : optional
        As for `forebay.empty`.

    Raises
    ------
    RuntimeError
        If there are not as many strides as lengths, or a number is negative.
    """
    return strided_tensor("empty_strided", size, stride, dtype, device, pin_memory, layout, requires_grad)


def strided_tensor(
    function: str,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: DTypeLike | None,
    device: DeviceLike | None,
    pin_memory: bool,
    layout: layout,
    requires_grad: bool,
) -> Tensor:
    """Return a tensor over memory that is just large enough."""
    lengths = views.dimensions(function, "size", (size,))
    steps = views.dimensions(function, "stride", (stride,))
    if len(lengths) != len(steps):
        raise RuntimeError(
            f"dimensionality of sizes ({len(lengths)}) must match dimensionality of strides ({len(steps)})"
        )
    extent = sum((length - 1) * step for length, step in zip(lengths, steps, strict=True)) + 1
    count = extent if math.prod(lengths) else 0
    made = creation.empty_for(function, ((count,),), None, None, dtype, device, pin_memory, layout, requires_grad)
    return made.as_strided(lengths, steps)


def asarray(
    obj: Any,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    copy: bool | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor of data, which shares memory where it can.

    As `torch.asarray`.

    Parameters
    ----------
    obj : array_like or Tensor
        The data.
    dtype : dtype, optional
        The element type; by default that of the data.
    device : device or str or int, optional
        The device; by default that of a tensor, else the default device.
    copy : bool, optional
        True to copy, False to raise if a copy is needed; by default copies are made where they are needed.
    requires_grad : bool, optional
        Only False.

    Raises
    ------
    ValueError
        If `copy` is False and a copy is needed.
    """
    check_options("asarray", None, requires_grad)
    if copy:
        return creation.tensor(obj, dtype=dtype, device=device)
    if copy is False and not isinstance(obj, (Tensor, np.ndarray)):
        raise ValueError("can't alias arbitrary sequence into a tensor.")
    found = creation.as_tensor(obj, dtype=dtype, device=device)
    if copy is False and isinstance(obj, Tensor) and found is not obj:
        if found.device != obj.device:
            raise ValueError(f"can't alias tensor from device '{obj.device}' to '{found.device}'.")
        raise ValueError(f"can't alias tensor with dtype '{obj.dtype}' into dtype '{found.dtype}'.")
    return found


def frombuffer(
    buffer: Any, *, dtype: DTypeLike, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """Return a tensor of the CPU over a buffer's memory.

    As `torch.frombuffer`.

    Parameters
    ----------
    buffer : buffer
        An object with Python's buffer protocol.
    dtype : dtype
        The element type.
    count : int, optional
        The number of elements; by default all.
    offset : int, optional
        Bytes before the first element.
    requires_grad : bool, optional
        Only False.

    Raises
    ------
    ValueError
        If the buffer has not so many elements.
    """
    check_options("frombuffer", None, requires_grad)
    kind, view = as_dtype(dtype), memoryview(buffer)
    total = view.nbytes
    if not total or not count:
        raise ValueError(f"both buffer length ({total}) and count ({count}) must not be 0")
    if not 0 <= offset < total:
        raise ValueError(
            f"offset ({offset} bytes) must be non-negative and no greater than buffer length ({total} bytes) - 1"
        )
    if count < 0 and (total - offset) % kind.itemsize:
        raise ValueError(
            f"buffer length ({total - offset} bytes) after offset ({offset} bytes) must be a multiple of element size "
            f"({kind.itemsize})"
        )
    wanted = (total - offset) // kind.itemsize if count < 0 else count
    if offset + wanted * kind.itemsize > total:
        raise ValueError(
            f"requested buffer length ({count} * {kind.itemsize} bytes) after offset ({offset} bytes) must not be "
            f"greater than actual buffer length ({total} bytes)"
        )
    return creation.from_numpy(np.frombuffer(view, kind, wanted, offset))


def scalar_tensor(
    s: complex,
    *,
    dtype: DTypeLike | None = None,
    layout: layout = strided,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create a tensor of one number, without dimensions, by default of float32.

    As `torch.scalar_tensor`.

    Parameters
    ----------
    s : bool or int or float or complex
        The number.
    dtype, layout, device, requires_grad, pin_memory : optional
        As for `forebay.empty`.
    """
    return creation.full(
        (), s, dtype=np.float32 if dtype is None else dtype, layout=layout, device=device, requires_grad=requires_grad,
        pin_memory=pin_memory,
    )  # fmt: skip


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: DTypeLike | None = None,
    layout: layout = strided,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create a matrix with ones on the diagonal and zeros elsewhere.

    As `torch.eye`.

    Parameters
    ----------
    n : int
        The number of rows.
    m : int, optional
        The number of columns; by default that of rows.
    dtype, layout, device, requires_grad : optional
        As for `forebay.empty`.

    Raises
    ------
    RuntimeError
        If a number is negative.
    """
    columns = n if m is None else m
    for name, number in (("n", n), ("m", columns)):
        if number < 0:
            raise RuntimeError(f"{name} must be greater or equal to 0, got {number}")
    made = creation.zeros(n, columns, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)
    made.diagonal().fill_(1)
    return made


def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: DTypeLike | None = None,
    layout: layout = strided,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create a tensor of numbers at equal distances, both ends included.

    As `torch.linspace`.

    Parameters
    ----------
    start, end : float
        The first and the last number.
    steps : int
        How many.
    dtype, layout, device, requires_grad : optional
        As for `forebay.empty`.

    Raises
    ------
    RuntimeError
        If `steps` is negative.
    """
    check_options("linspace", layout, requires_grad)
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    kind = as_dtype(np.float32 if dtype is None else dtype)
    values = np.linspace(start, end, steps)
    return creation.tensor(values.astype(kind), device=device)
