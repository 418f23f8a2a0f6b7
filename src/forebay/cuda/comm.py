"""Broadcast, scatter, gather and sum of tensors on several CUDA devices (`torch.cuda.comm`).

Copies are queued on each device's current stream. Complex tensors are copied and returned as pairs of floats in a last
dimension of 2, as in PyTorch.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from forebay._base.device_spec import Device, DeviceLike
from forebay._base.layouts import preserve_format
from forebay.cuda import nccl
from forebay.cuda._kind import CUDA
from forebay.errors import ForebayError
from forebay.runtime.memory.strided_copy import slowest_first
from forebay.runtime.memory.transfer import copy_tensor
from forebay.runtime.streams.stream import Stream, current_stream_for
from forebay.runtime.tensors import collectives
from forebay.runtime.tensors.collectives import Op
from forebay.runtime.tensors.memory_formats import (
    inverse,
    order_in,
    order_of_copy,
    packed_strides,
    suggested_format,
)
from forebay.runtime.tensors.tensor import Tensor, new_tensor

__all__ = ["broadcast", "broadcast_coalesced", "gather", "reduce_add", "reduce_add_coalesced", "scatter"]


def broadcast(
    tensor: Tensor, devices: Iterable[DeviceLike] | None = None, *, out: Sequence[Tensor] | None = None
) -> tuple[Tensor, ...]:
    """Copy a tensor to several devices.

    As `torch.cuda.comm.broadcast`. Does not wait.

    Parameters
    ----------
    tensor : Tensor
        The tensor, on any device.
    devices : iterable of (device or str or int), optional
        The devices to copy to.
    out : sequence of Tensor, optional
        CUDA tensors to copy into instead, of the same shape; their dtypes may differ.

    Returns
    -------
    tuple of Tensor
        One for each device; `tensor` itself on its own device. With `out`, the tensors of `out`.

    Raises
    ------
    RuntimeError
        Unless exactly one of `devices` and `out` is given, or if an output does not match.

    Examples
    --------
    >>> import forebay
    >>> from forebay.cuda import comm
    >>> with forebay.emulate("cuda", count=2):
    ...     ones = forebay.full((2,), 1.0, device="cuda:0")
    ...     [(str(each.device), each.tolist()) for each in comm.broadcast(ones, [0, 1])]
    [('cuda:0', [1.0, 1.0]), ('cuda:1', [1.0, 1.0])]
    """
    tensor = _view_as_real(tensor)
    if (devices is None) == (out is None):
        raise ForebayError(
            f"Exactly one of 'devices' and 'out' must be specified, but got devices={devices} and out={out}"
        )
    if devices is not None:
        targets = [_as_device(each) for each in devices]
        kept = [target == tensor.device for target in targets]
        made = [new_tensor(tensor.shape, tensor.numpy_dtype, target) for target in targets if target != tensor.device]
        _copy_into(tensor, made)
        copies = iter(made)
        return tuple(tensor if keep else next(copies) for keep in kept)
    outs = _checked_sequence(out, "out")
    for index, each in enumerate(outs):
        _check_cuda_output(each, index)
        if each.shape != tensor.shape:
            raise ForebayError(
                f"Expected all output tensors to have same shape as the source tensor {list(tensor.shape)}, but "
                f"output tensor at index {index} has shape {list(each.shape)}"
            )
    _copy_into(tensor, outs)
    return tuple(outs)


def _copy_into(tensor: Tensor, outs: Sequence[Tensor]) -> None:
    """Queue copies of a tensor. As in PyTorch, versions do not count what NCCL can do."""
    by_nccl = nccl.is_available([tensor, *outs])
    for each in outs:
        copy_tensor(each, tensor, non_blocking=True)
        if not by_nccl:
            each.count_change()


def broadcast_coalesced(
    tensors: Iterable[Tensor], devices: Iterable[DeviceLike], buffer_size: int = 10485760
) -> list[list[Tensor]]:
    """Copy several tensors to several devices.

    As `torch.cuda.comm.broadcast_coalesced`. Does not wait.

    Parameters
    ----------
    tensors : iterable of Tensor
        The tensors, all on the first device.
    devices : iterable of (device or str or int)
        The devices.
    buffer_size : int, default 10485760
        Bytes; checked without effect: each tensor is copied separately.

    Returns
    -------
    list of list of Tensor
        One list for each device; the first contains the tensors themselves.

    Raises
    ------
    RuntimeError
        If there is no device, or a tensor is not on the first device.
    """
    targets = [_as_device(each) for each in devices]
    sources = [_view_as_real(each) for each in tensors]
    _check_buffer_size(buffer_size)
    if not targets:
        raise ForebayError("Expected at least one device to broadcast to")
    if any(each.device != targets[0] for each in sources):
        raise ForebayError(f"All tensors must be on devices[0]: {targets[0].index}")
    return [sources, *([_copy_to(each, target) for each in sources] for target in targets[1:])]


def reduce_add(inputs: Sequence[Tensor], destination: DeviceLike | None = None) -> Tensor:
    """Return the sum of tensors on several devices.

    As `torch.cuda.comm.reduce_add`. Does not wait.

    Parameters
    ----------
    inputs : sequence of Tensor
        CUDA tensors of one shape.
    destination : device or str or int, optional
        The device of the sum, on which one of the inputs must be; the current one by default.

    Returns
    -------
    Tensor
        The sum; a single input is returned itself.

    Raises
    ------
    RuntimeError
        If no input is on the destination.
    ValueError
        If the shapes differ.
    AssertionError
        If an input is on the CPU device.

    Examples
    --------
    >>> import forebay
    >>> from forebay.cuda import comm
    >>> with forebay.emulate("cuda", count=2):
    ...     inputs = [forebay.full((2,), 1.0, device=f"cuda:{index}") for index in range(2)]
    ...     comm.reduce_add(inputs, 0).tolist()
    [2.0, 2.0]
    """
    _refuse_cpu(destination)
    index = CUDA.optional_index(destination)
    size = inputs[0].shape
    root = None
    for number, each in enumerate(inputs):
        if each.device.kind == "cpu":
            raise AssertionError(f"reduce_add expects all inputs to be on GPUs, but input {number} is on CPU")
        if each.device == Device(CUDA.name, index):
            root = number
        if each.shape != size:
            got, expected = ("x".join(map(str, shape)) for shape in (each.shape, size))
            raise ValueError(f"input {number} has invalid size: got {got}, but expected {expected}")
    if root is None:
        raise ForebayError("reduce_add expects destination to be on the same GPU with one of the tensors")
    if len(inputs) == 1:
        return inputs[0]
    if nccl.is_available(inputs):
        result = new_tensor(size, inputs[root].numpy_dtype, inputs[root].device)
        nccl.reduce(inputs, output=result, root=root)
        return result
    return _sum_without_nccl(inputs, root)


def _sum_without_nccl(inputs: Sequence[Tensor], root: int) -> Tensor:
    """Return the sum of tensors that NCCL rejects: two on one device, different dtypes, or non-contiguous tensors."""
    dtype = np.result_type(*(each.numpy_dtype for each in inputs))
    order = _order_of_sum(inputs[root], inputs[1 if root == 0 else 0])
    converted = [each.in_order(order).to(dtype=dtype).contiguous() for each in inputs]
    result = new_tensor(converted[root].shape, dtype, inputs[root].device)
    streams = [current_stream_for(each.raw_storage.opened) for each in converted]
    collectives.reduce(converted, result, root, Op.SUM, streams)
    for _ in inputs[2:]:  # PyTorch makes a sum of two inputs, and adds the others in place
        result.count_change()
    return result.in_order(inverse(order))


def _order_of_sum(first: Tensor, second: Tensor) -> Sequence[int]:
    """Return the dimensions of a sum on the device of `first`, slowest first, as PyTorch orders them."""
    if first.is_contiguous() and second.is_contiguous():
        return range(first.ndim)
    strides = second.byte_strides
    if first.device != second.device:  # those of a copy
        strides = packed_strides(second.shape, 1, order_of_copy(second, preserve_format))
    return slowest_first(first.shape, first.byte_strides, strides)


def reduce_add_coalesced(
    inputs: Sequence[Sequence[Tensor]], destination: DeviceLike | None = None, buffer_size: int = 10485760
) -> tuple[Tensor, ...]:
    """Return the sums of several lists of tensors, one list for each device.

    As `torch.cuda.comm.reduce_add_coalesced`. Does not wait.

    Parameters
    ----------
    inputs : sequence of sequence of Tensor
        Lists of equal length.
    destination : device or str or int, optional
        The device of the sums; the current one by default.
    buffer_size : int, default 10485760
        Bytes; checked without effect.

    Returns
    -------
    tuple of Tensor
        New tensors: the sum of the first tensors of all lists, of the second ones, and so on.

    Raises
    ------
    RuntimeError
        If no tensor of a position is on the destination.
    ValueError
        If the shapes at a position or the lengths of the lists differ.
    """
    _check_buffer_size(buffer_size)
    found = []
    for group in zip(*inputs, strict=True):
        total = reduce_add([each.contiguous() for each in group], destination)
        found.append(total.clone() if total is group[0] else total.data)
    return tuple(found)


def scatter(
    tensor: Tensor,
    devices: Iterable[DeviceLike] | None = None,
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[Stream | None] | None = None,
    *,
    out: Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Split a tensor into chunks and copy each to a device.

    As `torch.cuda.comm.scatter`. Does not wait.

    Parameters
    ----------
    tensor : Tensor
        The tensor, on any device.
    devices : iterable of (device or str or int), optional
        The devices, one for each chunk.
    chunk_sizes : sequence of int, optional
        Elements of each chunk along `dim`. By default chunks are equal, except that the last may be smaller and there
        may be fewer chunks than devices.
    dim : int, default 0
        The dimension to split.
    streams : sequence of (Stream or None), optional
        Streams to queue the copies on, synchronised by the caller with later work; the current ones by default.
    out : sequence of Tensor, optional
        CUDA tensors to copy the chunks into, instead of `devices` and `chunk_sizes`.

    Returns
    -------
    tuple of Tensor
        The chunks: views on the tensor's own device, copies elsewhere. With `out`, the tensors of `out`.

    Raises
    ------
    RuntimeError
        If the sizes, devices, streams or outputs do not match the tensor.
    IndexError
        If `dim` does not exist.

    Examples
    --------
    >>> import forebay
    >>> from forebay.cuda import comm
    >>> with forebay.emulate("cuda", count=2):
    ...     [each.tolist() for each in comm.scatter(forebay.tensor([1, 2, 3], device="cuda:0"), [0, 1])]
    [[1, 2], [3]]
    """
    tensor = _view_as_real(tensor)
    copy_streams = _checked_streams(streams)
    if out is not None:
        for name, each in (("devices", devices), ("chunk_sizes", chunk_sizes)):
            if each is not None:
                raise ForebayError(f"'{name}' must not be specified when 'out' is specified, but got {name}={each}")
        return _scatter_out(tensor, _checked_sequence(out, "out"), dim, copy_streams)
    if devices is None:
        raise TypeError("'NoneType' object is not iterable: one of 'devices' and 'out' must be specified")
    targets = [_as_device(each) for each in devices]
    if not targets:
        raise ForebayError("Expected at least one device to scatter to")
    dim = _normalized_dim(dim, tensor)
    if chunk_sizes is not None and len(chunk_sizes) != len(targets):
        raise ForebayError(
            "Expected devices and chunk_sizes to be of same length, but got "
            f"len(devices) = {len(targets)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )
    if not tensor.ndim:
        raise ForebayError("chunk expects at least a 1-dimensional tensor")
    chunks = _split(tensor, _chunk_sizes(tensor, dim, len(targets), chunk_sizes), dim)
    result = []
    for number, (chunk, target) in enumerate(zip(chunks, targets, strict=False)):
        with _stream_context(copy_streams, number, target):
            result.append(chunk.to(target, non_blocking=True))
    return tuple(result)


def _scatter_out(
    tensor: Tensor, outs: Sequence[Tensor], dim: int, streams: Sequence[Stream | None]
) -> tuple[Tensor, ...]:
    if not outs:
        raise ForebayError("Expected at least one output tensor to scatter to")
    dim = _normalized_dim(dim, tensor)
    for index, each in enumerate(outs):
        _check_cuda_output(each, index)
        if each.ndim != tensor.ndim or _without(each.shape, dim) != _without(tensor.shape, dim):
            raise ForebayError(
                f"Output tensor at index {index} has incorrect shape: {list(each.shape)}. Expected same shape except "
                f"for scatter dim {dim} as the source tensor: {list(tensor.shape)}"
            )
    sizes = [each.shape[dim] for each in outs]
    if sum(sizes) != tensor.shape[dim]:
        raise ForebayError(
            f"Total size for output tensors along scatter dim {dim} does not match the source tensor size at dim "
            f"{dim}. Expected {tensor.shape[dim]}, but got total size {sum(sizes)}"
        )
    for number, (chunk, each) in enumerate(zip(_split(tensor, sizes, dim), outs, strict=True)):
        with _stream_context(streams, number, each.device):
            each.copy_(chunk, non_blocking=True)
    return tuple(outs)


def gather(
    tensors: Iterable[Tensor], dim: int = 0, destination: DeviceLike | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Concatenate tensors of several devices on one device.

    As `torch.cuda.comm.gather`. Copies are queued.

    Parameters
    ----------
    tensors : iterable of Tensor
        CUDA tensors, of equal shapes except along `dim`.
    dim : int, default 0
        The dimension to concatenate along.
    destination : device or str or int, optional
        The device of the result, possibly "cpu"; the current CUDA device by default.
    out : Tensor, optional
        A tensor to copy into instead, on a CUDA device or the CPU device.

    Returns
    -------
    Tensor
        `out` or a new tensor with the first tensor's dtype.

    Raises
    ------
    RuntimeError
        If the tensors or `out` do not match.
    IndexError
        If `dim` does not exist.

    Warns
    -----
    FutureWarning
        If `destination` is -1, an old name of the CPU device.

    Examples
    --------
    >>> import forebay
    >>> from forebay.cuda import comm
    >>> with forebay.emulate("cuda", count=2):
    ...     comm.gather([forebay.full((2,), float(i), device=f"cuda:{i}") for i in range(2)]).tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    sources = [_view_as_real(each) for each in tensors]
    if out is None:
        if destination == -1 and not isinstance(destination, Device):
            warnings.warn(
                "Using -1 to represent CPU tensor is deprecated. Please use a device object or string instead, e.g., "
                '"cpu".',
                FutureWarning,
                stacklevel=2,
            )
            destination = "cpu"
        index = CUDA.optional_index(destination, allow_cpu=True)
    elif destination is not None:
        raise ForebayError(
            f"'destination' must not be specified when 'out' is specified, but got destination={destination}"
        )
    shape, dim = _gathered_shape(sources, dim)
    if out is None:
        target = Device("cpu") if index == -1 else _existing_device(0 if index is None else index)
        out = _gathered(shape, sources, target)
    elif out.shape != shape:
        raise ForebayError(f"Expected out tensor to have shape {list(shape)}, but got {list(out.shape)}")
    for part, each in zip(_split(out, [each.shape[dim] for each in sources], dim), sources, strict=True):
        part.copy_(each, non_blocking=True)
    return out


def _gathered(shape: Sequence[int], sources: Sequence[Tensor], target: Device) -> Tensor:
    """Return an uninitialised tensor for the sources, in the memory format that all of them have."""
    formats = {suggested_format(each) for each in sources}
    order = order_in(formats.pop(), len(shape)) if len(formats) == 1 else None
    dtype = sources[0].numpy_dtype
    if order is None:
        return new_tensor(shape, dtype, target)
    return new_tensor(tuple(shape[dim] for dim in order), dtype, target).in_order(inverse(order))


def _gathered_shape(tensors: Sequence[Tensor], dim: int) -> tuple[tuple[int, ...], int]:
    if not tensors:
        raise ForebayError("Expected at least one tensor to gather from")
    first = tensors[0]
    if not first.ndim:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    dim = _normalized_dim(dim, first)
    for index, each in enumerate(tensors):
        if each.device.kind != CUDA.name:
            raise ForebayError(
                f"Expected all input tensors to be CUDA tensors, but tensor at index {index} has device {each.device}"
            )
        if each.ndim != first.ndim:
            raise ForebayError(
                "Expected all input tensors to have the same number of dimensions, but tensor at index "
                f"{index} has {each.ndim} dimensions, (expected {first.ndim})"
            )
        expected = (*first.shape[:dim], each.shape[dim], *first.shape[dim + 1 :])
        if each.shape != expected:
            raise ForebayError(
                f"Input tensor at index {index} has invalid shape {list(each.shape)}, but expected {list(expected)}"
            )
    total = sum(each.shape[dim] for each in tensors)
    return (*first.shape[:dim], total, *first.shape[dim + 1 :]), dim


def _view_as_real(tensor: Tensor) -> Tensor:
    if tensor.numpy_dtype.kind != "c":
        return tensor
    return tensor.unsqueeze(-1).view(np.dtype(f"f{tensor.itemsize // 2}"))


def _refuse_cpu(device: Any) -> None:
    named = Device(device) if isinstance(device, str) else device
    if isinstance(named, Device) and named.kind == "cpu":
        raise ValueError(f"Expected a non cpu device, but got: {named}")


def _as_device(device: Any) -> Device:
    _refuse_cpu(device)
    index = CUDA.index(device)
    if index < 0:
        raise ForebayError(f"Expected non-negative device index, but got {index}")
    return _existing_device(index)


def _existing_device(index: int) -> Device:
    CUDA.check(index)
    return Device(CUDA.name, index)


def _copy_to(tensor: Tensor, device: Device) -> Tensor:
    """Return the tensor if it is on the device, else a contiguous copy there."""
    return tensor if tensor.device == device else tensor.copied(device, tensor.numpy_dtype, non_blocking=True)


def _checked_sequence(given: Any, name: str) -> Sequence[Tensor]:
    if isinstance(given, Tensor) or not isinstance(given, Sequence):
        raise TypeError(f"{name} must be a sequence of tensors, not {type(given).__name__}")
    return given


def _check_cuda_output(tensor: Tensor, index: int) -> None:
    if tensor.device.kind != CUDA.name:
        raise ForebayError(
            f"Expected all output tensors to be CUDA tensors, but output tensor at index {index} has device "
            f"'{tensor.device}'"
        )


def _check_buffer_size(nbytes: Any) -> None:
    if operator.index(nbytes) < 0:
        raise TypeError(f"buffer_size must be a non-negative number of bytes, got {nbytes}")


def _normalized_dim(dim: Any, tensor: Tensor) -> int:
    """Return the dimension counted from the front. Raises IndexError if it does not exist."""
    dim, ndim = operator.index(dim), max(tensor.ndim, 1)
    if not -ndim <= dim < ndim:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], but got {dim})")
    return int(dim % ndim)


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return shape[:dim] + shape[dim + 1 :]


def _chunk_sizes(tensor: Tensor, dim: int, count: int, chunk_sizes: Sequence[int] | None) -> list[int]:
    length = tensor.shape[dim]
    if chunk_sizes is None:
        if not length:
            return [0] * count
        each = math.ceil(length / count)
        return [min(each, length - start) for start in range(0, length, each)]
    sizes = [operator.index(each) for each in chunk_sizes]
    if any(size < 0 for size in sizes):
        raise ForebayError(
            f"split_with_sizes expects split_sizes have only non-negative entries, but got split_sizes={sizes}"
        )
    if sum(sizes) != length:
        raise ForebayError(
            f"split_with_sizes expects split_sizes to sum exactly to {length} (input tensor's size at dimension "
            f"{dim}), but got split_sizes={sizes}"
        )
    return sizes


def _split(tensor: Tensor, sizes: Iterable[int], dim: int) -> list[Tensor]:
    chunks, start = [], 0
    for size in sizes:
        chunks.append(tensor[(*(slice(None),) * dim, slice(start, start + size))])
        start += size
    return chunks


def _checked_streams(given: Any) -> Sequence[Stream | None]:
    if given is None:
        return ()
    if any(each is not None and not isinstance(each, Stream) for each in given):
        raise ForebayError("Unknown data type found in stream list. Need torch.cuda.Stream or None")
    return tuple(given)


def _stream_context(streams: Sequence[Stream | None], number: int, device: Device) -> Any:
    stream = streams[number] if number < len(streams) else None
    if stream is None:
        return nullcontext()
    if stream.opened.device != device:
        raise ForebayError(
            f"Expected the device associated with the stream at index {number} (was {stream.device_index}) to match "
            f"the device supplied at that index (expected {device.index})"
        )
    return stream
