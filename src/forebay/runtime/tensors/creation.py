"""Making tensors, in PyTorch's spelling. Each allocates on the current stream of its device, and opens that device."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from forebay.device_spec import Device
from forebay.dtypes import as_dtype
from forebay.runtime.devices import current
from forebay.runtime.memory.storage import AnyBlock, Storage, allocate_block, array_at
from forebay.runtime.streams.stream import default_of
from forebay.runtime.tensors.tensor import Tensor, new_tensor

__all__ = ["allocate", "empty", "empty_pinned", "from_dlpack", "from_numpy", "full", "tensor", "zeros"]

_MOST_DIMENSIONS = 64  # NumPy's bound, and PyTorch's


def allocate(nbytes: int, device: Device | str | int | None = None, *, usage: str = "") -> AnyBlock:
    """A raw Block of at least 1 byte on the device's current stream; dropping it gives the memory back.

    `.address`, `.size` (what was handed out), `.used_on(handle)`. Raises OutOfMemory, TypeError
    for what is no int. (`caching_allocator_alloc`)

    `usage`, of an MPS device: "shared" with the host, "private" to the device, or a "scalar", whose memory comes back
    when the stream is done with it; Unsupported for others, ValueError for what is none of these.

    >>> import forebay
    >>> forebay.allocate(1000, "host:0").size
    1024
    """
    nbytes, stream = operator.index(nbytes), current.stream_on(device, default_of)
    if usage:
        return stream.opened.allocator.allocate_for(nbytes, stream.handle, usage)
    return allocate_block(stream.opened, nbytes, stream.handle)


def empty(
    *size: int | Sequence[int], dtype: DTypeLike | None = None, device: Device | str | int | None = None
) -> Tensor:
    """A tensor whose elements are whatever the memory held. (`torch.empty`)

    >>> import forebay
    >>> forebay.empty(2, 3, dtype=forebay.uint8, device="host:0").nbytes
    6
    """
    kind = as_dtype(dtype)
    return new_tensor(_shape(size, kind), kind, device)


def zeros(
    *size: int | Sequence[int], dtype: DTypeLike | None = None, device: Device | str | int | None = None
) -> Tensor:
    """A tensor of zeros. (`torch.zeros`)"""
    return empty(*size, dtype=dtype, device=device).zero_()


def full(
    size: int | Sequence[int],
    fill_value: complex,
    *,
    dtype: DTypeLike | None = None,
    device: Device | str | int | None = None,
) -> Tensor:
    """A tensor of one value; its dtype, if none is given, is what `tensor(fill_value)` would have. (`torch.full`)"""
    kind = _inferred(np.asarray(fill_value), fill_value) if dtype is None else dtype
    return empty(size, dtype=kind, device=device).fill_(fill_value)


def tensor(
    data: ArrayLike | Tensor, *, dtype: DTypeLike | None = None, device: Device | str | int | None = None
) -> Tensor:
    """A copy of the data on the device. Python's floats become float32, as in PyTorch; arrays keep their dtype.

    >>> import forebay
    >>> forebay.tensor([[1, 2], [3, 4]]).dtype
    dtype('int64')
    """
    if isinstance(data, Tensor):
        place = data.device if device is None else current.resolve(device)
        return data.to(dtype=dtype, device=place, copy=True)
    array = np.asarray(data)
    kind = _inferred(array, data) if dtype is None else dtype
    return empty(array.shape, dtype=kind, device=device).copy_(array)


def from_numpy(ndarray: NDArray[Any]) -> Tensor:
    """A tensor of the host device that shares the array's memory and keeps it alive; nothing is copied.

    Warns for an array that must not be written, TypeError for what is not an array. (`torch.from_numpy`)
    """
    if not isinstance(ndarray, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(ndarray).__name__})")
    if not ndarray.flags.writeable:
        warnings.warn("the array is read-only, and a tensor is not: writing to it is undefined", stacklevel=2)
    dtype = as_dtype(ndarray.dtype)
    if any(step % dtype.itemsize for step in ndarray.strides):
        raise ValueError("the array's strides are not multiples of its element's size: copy it first")
    opened = current.opened_for("host:0")
    address = ndarray.__array_interface__["data"][0]
    storage = Storage(opened, ndarray.nbytes, address, ndarray)
    return Tensor(storage, dtype, ndarray.shape, ndarray.strides, address)


def from_dlpack(ext_tensor: Any) -> Tensor:
    """A tensor of the host device that shares the memory of anything that speaks DLPack on the CPU; no copy is made."""
    return from_numpy(np.from_dlpack(ext_tensor))


def empty_pinned(
    *size: int | Sequence[int], dtype: DTypeLike | None = None, device: Device | str | int | None = None
) -> NDArray[Any]:
    """A NumPy array in host memory that the device's queues copy from and to while the host goes on.

    Its memory comes from a cache and goes back there with the last array (`forebay.memory.empty_host_cache`), once
    copies that were queued are done. Raises Unsupported where the device lends none, DeviceError where the system locks
    no more pages. (`torch.empty(..., pin_memory=True)`)
    """
    kind = as_dtype(dtype)
    shape = _shape(size, kind)
    count = math.prod(shape)
    if count == 0:
        return np.empty(shape, kind)
    block = current.opened_for(device).pinned.allocate(count * kind.itemsize)
    return array_at(block.address, (count,), (kind.itemsize,), kind, block).reshape(shape)


def _shape(size: tuple[int | Sequence[int], ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """PyTorch's two spellings, `empty(2, 3)` and `empty((2, 3))`, as a tuple of ints that are not negative."""
    parts = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
    if any(isinstance(part, (bool, str)) for part in parts):
        raise TypeError(f"a size is made of ints, not {parts!r}")
    shape = tuple(operator.index(part) for part in parts)  # type: ignore[arg-type]  # it is what finds out
    if any(length < 0 for length in shape):
        raise ValueError(f"a size must not be negative: {shape}")
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor has at most {_MOST_DIMENSIONS} dimensions, not {len(shape)}")
    if 0 in shape and math.prod(length or 1 for length in shape) * dtype.itemsize >= 1 << 63:
        raise ValueError(f"no strides can be told for an empty tensor of shape {shape}")
    return shape


def _inferred(array: NDArray[Any], data: object) -> np.dtype[Any]:
    """PyTorch's default floats are float32 (complex64), unless the data brings a dtype of its own."""
    if hasattr(data, "dtype"):
        return array.dtype
    return {"f": np.dtype("f4"), "c": np.dtype("c8")}.get(array.dtype.kind, array.dtype)
