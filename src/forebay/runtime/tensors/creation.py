"""Functions that create tensors of given values or of existing memory."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forebay._base.device_spec import CPU, Device, chosen_device
from forebay._base.dtypes import DTypeLike, as_dtype
from forebay._base.layouts import contiguous_format, layout, memory_format, preserve_format, strided
from forebay._core import MAX_REQUEST_BYTES
from forebay.errors import ForebayError
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import pinned_allocator
from forebay.runtime.memory.storage import AnyBlock, Storage, allocate_block
from forebay.runtime.memory.transfer import copy_array, copy_tensor, fill, zero
from forebay.runtime.streams.stream import default_stream_for
from forebay.runtime.tensors.cuda_arrays import cuda_array_tensor
from forebay.runtime.tensors.memory_formats import inverse, order_in
from forebay.runtime.tensors.options import DeviceLike, check_options, check_out, shape_of
from forebay.runtime.tensors.pinned import pinned_array
from forebay.runtime.tensors.python_data import array_of, check_array
from forebay.runtime.tensors.tensor import Tensor, borrowed_tensor, new_tensor

__all__ = [
    "READ_ONLY_WARNING",
    "allocate",
    "arange",
    "as_tensor",
    "empty",
    "empty_for",
    "empty_pinned",
    "from_numpy",
    "full",
    "ones",
    "tensor",
    "tensor_over",
    "zeros",
]

READ_ONLY_WARNING = "the array is read-only, and a tensor is not: writing to it is undefined"


def allocate(nbytes: int, device: DeviceLike = None, *, usage: str = "") -> AnyBlock:
    """Allocate a block of device memory on the device's current stream.

    Parameters
    ----------
    nbytes : int
        The size in bytes; at least 1 byte is allocated.
    device : device or str or int, optional
        The device; the current one by default. It is opened.
    usage : {"shared", "private", "scalar"}, optional
        On MPS devices, the kind of buffer: shared with the host, private to the device, or a scalar that is reused
        once the stream has passed it.

    Returns
    -------
    Block
        The block, with `address` and `size` in bytes. The memory is freed with the last reference to the block.

    Raises
    ------
    OutOfMemory
        If the device has no memory for it.
    Unsupported
        If `usage` is given and the device has no such buffers.

    Notes
    -----
    As `torch.cuda.caching_allocator_alloc`, with an owner.

    Examples
    --------
    >>> import forebay
    >>> forebay.allocate(1000, "cpu").size
    1024
    """
    nbytes, stream = operator.index(nbytes), current.stream_on(device, default_stream_for)
    if nbytes >= MAX_REQUEST_BYTES:
        raise stream.opened.allocator.too_large_error(nbytes)
    if usage:
        return stream.opened.allocator.allocate_for(nbytes, stream.handle, usage)
    return allocate_block(stream.opened, nbytes, stream.handle)


# Written by tools/write_names.py from tools/names/factories.toml: edit the table, not these lines.


def zeros(
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    layout: layout = strided,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create a tensor of zeros.

    As `torch.zeros`.

    Parameters
    ----------
    *sizes : int or sequence of int
        The shape: `zeros(2, 3)` or `zeros((2, 3))`.
    size : sequence of int, optional
        The shape, as a keyword.
    out : Tensor, optional
        A tensor to fill instead of a new one; it gets this shape.
    dtype : dtype, optional
        The element type; float32 by default.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        The device; the default device of this thread otherwise.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.

    Returns
    -------
    Tensor
        The tensor; its fill is queued on the current stream of its device.

    Raises
    ------
    OutOfMemory
        If the device has no memory for it.

    Examples
    --------
    >>> import forebay
    >>> forebay.zeros(3)
    tensor([0., 0., 0.])
    """
    made = empty_for("zeros", sizes, size, out, dtype, device, pin_memory, layout, requires_grad)
    zero(made)
    return made


def ones(
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    layout: layout = strided,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create a tensor of ones.

    As `torch.ones`.

    Parameters
    ----------
    *sizes : int or sequence of int
        The shape: `ones(2, 3)` or `ones((2, 3))`.
    size : sequence of int, optional
        The shape, as a keyword.
    out : Tensor, optional
        A tensor to fill instead of a new one; it gets this shape.
    dtype : dtype, optional
        The element type; float32 by default.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        The device; the default device of this thread otherwise.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.

    Returns
    -------
    Tensor
        The tensor; its fill is queued on the current stream of its device.

    Raises
    ------
    OutOfMemory
        If the device has no memory for it.

    Examples
    --------
    >>> import forebay
    >>> forebay.ones(2, 2, dtype=forebay.int64)
    tensor([[1, 1],
            [1, 1]])
    """
    made = empty_for("ones", sizes, size, out, dtype, device, pin_memory, layout, requires_grad)
    fill(made, 1)
    return made


def empty_pinned(*size: int | Sequence[int], dtype: DTypeLike | None = None, device: DeviceLike = None) -> NDArray[Any]:
    """Create a NumPy array in page-locked host memory.

    As `torch.empty(..., pin_memory=True)`, for NumPy.

    Parameters
    ----------
    *size : int or sequence of int
        The shape.
    dtype : dtype, optional
        The element type; float32 by default.
    device : device or str or int, optional
        The device that pins the memory; the current one by default.

    Returns
    -------
    numpy.ndarray
        An array that the device's queues copy from and to while the host continues. Its memory comes from a cache and
        returns there after the last array and the last queued copy (`forebay.memory.empty_host_cache`).

    Raises
    ------
    Unsupported
        If the device has no pinned memory.
    DeviceError
        If the system locks no more pages.
    """
    kind = as_dtype(dtype)
    return pinned_array(shape_of("empty_pinned", size, None, kind), kind, current.opened_for(device).pinned)


def empty(
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    layout: layout = strided,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: memory_format = contiguous_format,
) -> Tensor:
    """Create a tensor without initialising its elements.

    As `torch.empty`.

    Parameters
    ----------
    *sizes : int or sequence of int
        The shape: `empty(2, 3)` or `empty((2, 3))`.
    size : sequence of int, optional
        The shape, as a keyword.
    out : Tensor, optional
        A tensor to return instead of a new one; it gets this shape.
    dtype : dtype, optional
        The element type; float32 by default.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        The device; the default device of this thread otherwise (`set_default_device`). It is opened.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory, which accelerators copy without blocking the host.
    memory_format : memory_format, optional
        The order of the dimensions in memory, such as `forebay.channels_last`.

    Returns
    -------
    Tensor
        The tensor, allocated on the current stream of its device.

    Raises
    ------
    OutOfMemory
        If the device has no memory for it.
    RuntimeError
        If `pin_memory` is given for another device than the CPU, or if there is no accelerator to pin memory.
    Unsupported
        If an option needs a tensor library.

    Examples
    --------
    >>> import forebay
    >>> forebay.empty(2, 3, dtype=forebay.uint8).nbytes
    6
    """
    if requires_grad or layout is not strided or memory_format is not contiguous_format:
        check_options("empty", layout, requires_grad, memory_format)
        if memory_format is not contiguous_format:
            return _in_format(memory_format, sizes, size, out, dtype, device, pin_memory)
    length = sizes[0] if len(sizes) == 1 and size is None and out is None and pin_memory is False else None
    if length.__class__ is int and 0 <= length < MAX_REQUEST_BYTES:
        return new_tensor((length,), as_dtype(dtype), device)
    return empty_for("empty", sizes, size, out, dtype, device, pin_memory)


def full(
    size: Sequence[int],
    fill_value: complex,
    *,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    layout: layout = strided,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create a tensor with all elements equal.

    As `torch.full`.

    Parameters
    ----------
    size : sequence of int
        The shape.
    fill_value : bool or int or float or complex
        The value of each element.
    out : Tensor, optional
        A tensor to fill instead of a new one; it gets this shape.
    dtype : dtype, optional
        The element type; by default that of `tensor(fill_value)`.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        The device; the default device of this thread otherwise.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.

    Returns
    -------
    Tensor
        The tensor; its fill is queued on the current stream of its device.

    Raises
    ------
    OutOfMemory
        If the device has no memory for it.

    Examples
    --------
    >>> import forebay
    >>> forebay.full((3,), 7)
    tensor([7, 7, 7])
    """
    check_options("full", layout, requires_grad)
    if not isinstance(size, (list, tuple)):
        raise TypeError(f"full(): argument 'size' (position 1) must be tuple of ints, not {type(size).__name__}")
    kind: DTypeLike = None
    if isinstance(fill_value, Tensor):
        kind, fill_value = fill_value.dtype, fill_value.item()
    elif not isinstance(fill_value, (int, float, complex, np.generic)):
        name = type(fill_value).__name__
        raise TypeError(f"full(): argument 'fill_value' (position 2) must be Number, not {name}")
    elif dtype is None and out is None:
        kind = array_of(fill_value, None).dtype
    made = empty_for("full", (size,), None, out, kind if dtype is None else dtype, device, pin_memory)
    fill(made, fill_value)
    return made


def as_tensor(data: ArrayLike | Tensor, dtype: DTypeLike | None = None, device: DeviceLike = None) -> Tensor:
    """Return data as a tensor, without a copy where none is needed.

    As `torch.as_tensor`.

    Parameters
    ----------
    data : array_like or Tensor
        A tensor, an array, a number or nested sequences; also an array of a GPU with `__cuda_array_interface__`.
    dtype : dtype, optional
        The element type; as for `tensor` by default.
    device : device or str or int, optional
        The device; by default that of a tensor, else the default device of this thread. Arrays of a GPU stay there if
        no default device is set.

    Returns
    -------
    Tensor
        The tensor itself if it has the dtype and device already; a tensor that shares an array's memory if that has
        the dtype and device; else a copy.

    Examples
    --------
    >>> import forebay
    >>> numbers = forebay.ones(3)
    >>> forebay.as_tensor(numbers) is numbers
    True
    """
    if isinstance(data, Tensor):
        return data.to(device=data.device if device is None else device, dtype=dtype)
    if isinstance(data, np.ndarray) and data.flags.writeable and current.resolve_default(device) is CPU:
        return from_numpy(data).to(dtype=dtype)
    if (shared := cuda_array_tensor(data)) is not None:
        return shared.to(dtype=dtype, device=_place_of(shared, device))
    return tensor(data, dtype=dtype, device=device)


# End of the written lines.


def _in_format(
    format_: memory_format,
    sizes: tuple[int | Sequence[int], ...],
    size: Sequence[int] | None,
    out: Tensor | None,
    dtype: DTypeLike | None,
    device: DeviceLike,
    pin_memory: bool,
) -> Tensor:
    """Return an uninitialised tensor in a format of `empty` that is not the default one."""
    if format_ is preserve_format:
        raise ForebayError("unsupported memory format Preserve")
    if out is not None:
        raise ForebayError("'memory_format' argument is incompatible with 'out' tensor argument")
    shape = shape_of("empty", sizes, size, as_dtype(dtype))
    order = order_in(format_, len(shape))
    if order is None:
        return empty_for("empty", (shape,), None, out, dtype, device, pin_memory)
    ordered = tuple(shape[dim] for dim in order)
    return empty_for("empty", (ordered,), None, None, dtype, device, pin_memory).in_order(inverse(order))


def empty_for(
    function: str,
    sizes: tuple[int | Sequence[int], ...],
    size: Sequence[int] | None,
    out: Tensor | None,
    dtype: DTypeLike | None,
    device: DeviceLike,
    pin_memory: bool,
    layout: layout = strided,
    requires_grad: bool = False,
) -> Tensor:
    """Return an uninitialised tensor for a factory, whose name error texts contain. Checks all options.

    A factory that checks arguments of its own before calls `check_options` first, so that those errors have precedence.
    """
    if requires_grad or layout is not strided:
        check_options(function, layout, requires_grad)
    kind = as_dtype(dtype)
    shape = shape_of(function, sizes, size, kind)
    if pin_memory.__class__ is not bool and pin_memory is not None:
        raise TypeError(f"{function}(): argument 'pin_memory' must be bool, not {type(pin_memory).__name__}")
    if out is not None:
        wanted = None if device is None else current.resolve(device)
        check_out(function, out, None if dtype is None else kind, wanted)
        before = out.shape
        out.resize_(shape)
        if function == "randn" or (function != "empty" and shape == before):  # as PyTorch counts changes
            out.count_change()
        return out
    if pin_memory:
        return _pinned(shape, kind, device)
    return new_tensor(shape, kind, device)


def arange(
    start: float = 0,
    end: float | None = None,
    step: float = 1,
    *,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    layout: layout = strided,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create a tensor of evenly spaced values from `start` up to, but not including, `end`.

    Parameters
    ----------
    start : int or float, optional
        The first value; `arange(end)` begins at 0.
    end : int or float
        The bound.
    step : int or float, optional
        The difference of neighbours; 1 by default.
    out : Tensor, optional
        A tensor to fill instead of a new one; it gets this shape.
    dtype : dtype, optional
        The element type; int64 by default, float32 if an argument is a float.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        The device; the default device of this thread otherwise.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.

    Returns
    -------
    Tensor
        A tensor of one dimension.

    Raises
    ------
    RuntimeError
        If a bound is not finite, or if `step` is zero or has the wrong sign.

    Notes
    -----
    As `torch.arange`. The host computes the values.

    Examples
    --------
    >>> import forebay
    >>> forebay.arange(2, 8, 3)
    tensor([2, 5])
    """
    check_options("arange", layout, requires_grad)
    if end is None:
        start, end = 0, start
    if not (math.isfinite(start) and math.isfinite(end)):
        raise RuntimeError(f"unsupported range: {start} -> {end}")
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (step > 0 and end < start) or (step < 0 and end > start):
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    if dtype is None:
        by_values = np.dtype("i8" if all(isinstance(each, int) for each in (start, end, step)) else "f4")
        kind = by_values if out is None else getattr(out, "numpy_dtype", by_values)
    else:
        kind = as_dtype(dtype)
    count = max(math.ceil((end - start) / step), 0)
    values = (start + step * np.arange(count)).astype(kind)
    made = empty_for("arange", (count,), None, None, kind, device, pin_memory) if out is None else out
    if out is not None:
        check_out("arange", out, None if dtype is None else kind, None if device is None else current.resolve(device))
        if out.numel() != count:
            _warn_of_resizing(out, count)
            out.resize_(count)
        else:
            out.count_change()
    copy_array(made, values.reshape(made.shape), non_blocking=False)
    return made


def _warn_of_resizing(out: Tensor, count: int) -> None:
    """Warn as `torch.arange` does."""
    if out.numel():
        shape = "[" + ", ".join(map(str, out.shape)) + "]"
        warnings.warn(
            f"The number of elements in the out tensor of shape {shape} is {out.numel()} which does not match the "
            f"computed number of elements {count}. Note that this may occur as a result of rounding error. The out "
            f"tensor will be resized to a tensor of shape ({count},).",
            UserWarning,
            stacklevel=3,
        )


def tensor(
    data: ArrayLike | Tensor,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create a tensor with a copy of data.

    Parameters
    ----------
    data : array_like or Tensor
        Numbers, nested sequences, an array or another tensor; also an array of a GPU with `__cuda_array_interface__`.
    dtype : dtype, optional
        The element type; by default that of arrays and tensors, float32 for Python's floats, int64 for its ints.
    device : device or str or int, optional
        The device; by default that of `data` if it is a tensor, else the default device of this thread. Arrays of a GPU
        stay there if no default device is set.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.

    Returns
    -------
    Tensor
        The copy. The data may change afterwards.

    Raises
    ------
    OutOfMemory
        If the device has no memory for it.

    Notes
    -----
    As `torch.tensor`.

    Examples
    --------
    >>> import forebay
    >>> forebay.tensor([[1, 2], [3, 4]]).dtype
    forebay.int64
    """
    check_options("tensor", None, requires_grad)
    if pin_memory is None:
        raise TypeError("tensor(): argument 'pin_memory' must be bool, not NoneType")
    if isinstance(data, Tensor):
        place = data.device if device is None else current.resolve(device)
        if pin_memory is False:
            return data.to(dtype=dtype, device=place, copy=True)
        kind = data.numpy_dtype if dtype is None else dtype
        made = empty_for("tensor", (data.shape,), None, None, kind, place, pin_memory)
        copy_tensor(made, data, non_blocking=False)
        return made
    if (shared := cuda_array_tensor(data)) is not None:
        if pin_memory:
            raise RuntimeError("Can't pin tensor constructed from __cuda_array_interface__")
        return shared.to(dtype=dtype, device=_place_of(shared, device), copy=True)
    array = array_of(data, None if dtype is None else as_dtype(dtype))
    made = empty_for("tensor", (array.shape,), None, None, array.dtype, device, pin_memory)
    copy_array(made, array, non_blocking=False)
    return made


def _place_of(shared: Tensor, device: DeviceLike) -> Device:
    """Return the device of a factory's result: the named or the default one; that of the data if neither is set."""
    wanted = chosen_device() if device is None else device
    return shared.device if wanted is None else current.resolve(wanted)


def from_numpy(ndarray: NDArray[Any]) -> Tensor:
    """Return a CPU tensor that shares an array's memory.

    Parameters
    ----------
    ndarray : numpy.ndarray
        The array. The tensor keeps it alive.

    Returns
    -------
    Tensor
        A tensor of the same memory; nothing is copied.

    Raises
    ------
    TypeError
        If the argument is not an array, or a device cannot store its elements.
    ValueError
        If the strides are not multiples of the element size.

    Warns
    -----
    UserWarning
        If the array is read-only.

    Notes
    -----
    As `torch.from_numpy`.
    """
    if not isinstance(ndarray, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(ndarray).__name__})")
    check_array(ndarray)
    if not ndarray.flags.writeable:
        warnings.warn(READ_ONLY_WARNING, stacklevel=2)
    return tensor_over(ndarray)


def tensor_over(ndarray: NDArray[Any]) -> Tensor:
    """Return a tensor of an array's memory, whether or not NumPy may write to it."""
    dtype = as_dtype(ndarray.dtype)
    if any(step % dtype.itemsize for step in ndarray.strides):
        raise ValueError("the array's strides are not multiples of its element's size: copy it first")
    address = ndarray.__array_interface__["data"][0]
    storage = Storage(current.opened_for(CPU), ndarray.nbytes, address, ndarray)
    return Tensor(storage, dtype, ndarray.shape, ndarray.strides)


def _pinned(shape: Sequence[int], dtype: np.dtype[Any], device: DeviceLike) -> Tensor:
    """Return a CPU tensor in memory that the current accelerator pins."""
    place = current.resolve_default(device)
    if place.kind != "cpu":
        raise RuntimeError("Only dense CPU tensors can be pinned")
    kind = current.accelerator_kind()
    if kind is None:
        raise RuntimeError(
            "pin_memory=True requires a CUDA or other accelerator backend; no pinned memory allocator is available on "
            "this system."
        )
    array = pinned_array(tuple(shape), dtype, pinned_allocator(current.resolve(kind)))
    return borrowed_tensor(array, place)
