"""Tensors sent to several CUDA devices, and collected from them. (`torch.cuda.comm`)

Copies are queued on each device's current stream. Complex tensors go as pairs of floats in a last dimension of 2, and
come out so, as in PyTorch.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from forebay.cuda import nccl
from forebay.cuda._kind import CUDA
from forebay.device_spec import Device
from forebay.errors import ForebayError
from forebay.runtime.streams.stream import Stream, stream_of
from forebay.runtime.tensors import collectives
from forebay.runtime.tensors.collectives import Op
from forebay.runtime.tensors.tensor import Tensor, new_tensor

__all__ = ["broadcast", "broadcast_coalesced", "gather", "reduce_add", "reduce_add_coalesced", "scatter"]

_HOST = ("cpu", "host")


def broadcast(
    tensor: Tensor, devices: Iterable[Any] | None = None, *, out: Sequence[Tensor] | None = None
) -> tuple[Tensor, ...]:
    """The tensor on each device: itself where it is, else a copy; or copied into `out`, which may have other dtypes."""
    tensor = _real(tensor)
    if (devices is None) == (out is None):
        raise ForebayError(
            f"Exactly one of 'devices' and 'out' must be specified, but got devices={devices} and out={out}"
        )
    if devices is not None:
        places = [_place(each) for each in devices]
        return tuple(_on(tensor, place) for place in places)
    outs = _sequence(out, "out")
    for index, each in enumerate(outs):
        _check_cuda_output(each, index)
        if each.shape != tensor.shape:
            raise ForebayError(
                f"Expected all output tensors to have same shape as the source tensor {list(tensor.shape)}, but "
                f"output tensor at index {index} has shape {list(each.shape)}"
            )
    for each in outs:
        each.copy_(tensor, non_blocking=True)
    return tuple(outs)


def broadcast_coalesced(
    tensors: Iterable[Tensor], devices: Iterable[Any], buffer_size: int = 10485760
) -> list[list[Tensor]]:
    """For each device the tensors there: themselves on the first, which must be theirs, copies on the others.

    `buffer_size` makes no difference: each copy goes by itself.
    """
    places = [_place(each) for each in devices]
    found = [_real(each) for each in tensors]
    _check_buffer_size(buffer_size)
    if not places:
        raise ForebayError("Expected at least one device to broadcast to")
    if any(each.device != places[0] for each in found):
        raise ForebayError(f"All tensors must be on devices[0]: {places[0].index}")
    return [found, *([_on(each, place) for each in found] for place in places[1:])]


def reduce_add(inputs: Sequence[Tensor], destination: Any = None) -> Tensor:
    """The sum of the inputs, on the destination or the current device, where one of them has to be.

    A single input is its own sum.
    """
    index = _index(destination, optional=True)
    size = inputs[0].shape
    root = None
    for number, each in enumerate(inputs):
        if each.device.kind in _HOST:
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
        result = new_tensor(size, inputs[root].dtype, inputs[root].device)
        nccl.reduce(inputs, output=result, root=root)
        return result
    return _sum(inputs, root)


def _sum(inputs: Sequence[Tensor], root: int) -> Tensor:
    """Of what NCCL does not take: two on one device, other dtypes, tensors that are not contiguous."""
    kind = np.result_type(*(each.dtype for each in inputs))
    alike = [each.to(dtype=kind).contiguous() for each in inputs]
    result = new_tensor(inputs[root].shape, kind, inputs[root].device)
    streams = [stream_of(each.storage.opened) for each in alike]
    collectives.reduce(alike, result, root, Op.SUM, streams)
    return result


def reduce_add_coalesced(
    inputs: Sequence[Sequence[Tensor]], destination: Any = None, buffer_size: int = 10485760
) -> tuple[Tensor, ...]:
    """For each position the sum of what all inputs have there, always new tensors. `buffer_size` is as above."""
    _check_buffer_size(buffer_size)
    return tuple(
        reduce_add(group, destination) if len(group) > 1 else reduce_add(group, destination).clone()
        for group in zip(*inputs, strict=True)
    )


def scatter(
    tensor: Tensor,
    devices: Iterable[Any] | None = None,
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[Stream | None] | None = None,
    *,
    out: Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Chunks of the tensor, one for each device: a view where it is, else a copy; or copied into `out`.

    Without sizes the chunks are equal, but the last may be smaller, or there may be fewer of them. `streams` are those
    that copies are queued on; the caller keeps them in step with later work.
    """
    tensor = _real(tensor)
    given = _streams(streams)
    if out is not None:
        for name, each in (("devices", devices), ("chunk_sizes", chunk_sizes)):
            if each is not None:
                raise ForebayError(f"'{name}' must not be specified when 'out' is specified, but got {name}={each}")
        return _scatter_out(tensor, _sequence(out, "out"), dim, given)
    if devices is None:
        raise TypeError("'NoneType' object is not iterable: one of 'devices' and 'out' must be specified")
    places = [_place(each) for each in devices]
    if not places:
        raise ForebayError("Expected at least one device to scatter to")
    dim = _dimension(dim, tensor)
    if chunk_sizes is not None and len(chunk_sizes) != len(places):
        raise ForebayError(
            "Expected devices and chunk_sizes to be of same length, but got "
            f"len(devices) = {len(places)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )
    if not tensor.ndim:
        raise ForebayError("chunk expects at least a 1-dimensional tensor")
    chunks = _split(tensor, _sizes(tensor, dim, len(places), chunk_sizes), dim)
    found = []
    for number, (chunk, place) in enumerate(zip(chunks, places, strict=False)):
        with _on_stream(given, number, place):
            found.append(_on(chunk, place))
    return tuple(found)


def _scatter_out(
    tensor: Tensor, outs: Sequence[Tensor], dim: int, streams: Sequence[Stream | None]
) -> tuple[Tensor, ...]:
    if not outs:
        raise ForebayError("Expected at least one output tensor to scatter to")
    dim = _dimension(dim, tensor)
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
        with _on_stream(streams, number, each.device):
            each.copy_(chunk, non_blocking=True)
    return tuple(outs)


def gather(tensors: Iterable[Tensor], dim: int = 0, destination: Any = None, *, out: Tensor | None = None) -> Tensor:
    """The tensors one behind the other along a dimension, on the destination, else the current device.

    "cpu" is host memory, where `out` may be, too. The dtype is the first one's.
    """
    found = [_real(each) for each in tensors]
    if out is None:
        if destination == -1 and not isinstance(destination, Device):
            warnings.warn(
                "Using -1 to represent CPU tensor is deprecated. Please use a device object or string instead, e.g., "
                '"cpu".',
                FutureWarning,
                stacklevel=2,
            )
            destination = "cpu"
        index = CUDA.index(destination, allow_cpu=True, optional=True)
        place = Device("host", 0) if index == -1 else _checked(index)
    elif destination is not None:
        raise ForebayError(
            f"'destination' must not be specified when 'out' is specified, but got destination={destination}"
        )
    shape, dim = _gathered_shape(found, dim)
    if out is None:
        out = new_tensor(shape, found[0].dtype, place)
    elif out.shape != shape:
        raise ForebayError(f"Expected out tensor to have shape {list(shape)}, but got {list(out.shape)}")
    for part, each in zip(_split(out, [each.shape[dim] for each in found], dim), found, strict=True):
        part.copy_(each, non_blocking=True)
    return out


def _gathered_shape(tensors: Sequence[Tensor], dim: int) -> tuple[tuple[int, ...], int]:
    if not tensors:
        raise ForebayError("Expected at least one tensor to gather from")
    first = tensors[0]
    if not first.ndim:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    dim = _dimension(dim, first)
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


def _real(tensor: Tensor) -> Tensor:
    if tensor.dtype.kind != "c":
        return tensor
    return tensor.unsqueeze(-1).view(np.dtype(f"f{tensor.itemsize // 2}"))


def _index(device: Any, *, optional: bool = False) -> int:
    named = Device(device) if isinstance(device, str) else device
    if isinstance(named, Device) and named.kind in _HOST:
        raise ValueError(f"Expected a non cpu device, but got: {named}")
    return CUDA.index(device, optional=optional)


def _place(device: Any) -> Device:
    index = _index(device)
    if index < 0:
        raise ForebayError(f"Expected non-negative device index, but got {index}")
    return _checked(index)


def _checked(index: int) -> Device:
    CUDA.check(index)
    return Device(CUDA.name, index)


def _on(tensor: Tensor, place: Device) -> Tensor:
    """Itself where it is there, else a contiguous copy."""
    if tensor.device == place:
        return tensor
    return new_tensor(tensor.shape, tensor.dtype, place).copy_(tensor, non_blocking=True)


def _sequence(given: Any, name: str) -> Sequence[Tensor]:
    if isinstance(given, Tensor) or not isinstance(given, Sequence):
        raise TypeError(f"{name} is a sequence of tensors, not {type(given).__name__}")
    return given


def _check_cuda_output(tensor: Tensor, index: int) -> None:
    if tensor.device.kind != CUDA.name:
        raise ForebayError(
            f"Expected all output tensors to be CUDA tensors, but output tensor at index {index} has device "
            f"'{tensor.device}'"
        )


def _check_buffer_size(nbytes: Any) -> None:
    if operator.index(nbytes) < 0:
        raise TypeError(f"buffer_size is a number of bytes, not {nbytes}")


def _dimension(dim: Any, tensor: Tensor) -> int:
    """The dimension, counted from the front. IndexError where there is none."""
    dim, most = operator.index(dim), max(tensor.ndim, 1)
    if not -most <= dim < most:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-most}, {most - 1}], but got {dim})")
    return int(dim % most)


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return shape[:dim] + shape[dim + 1 :]


def _sizes(tensor: Tensor, dim: int, parts: int, wanted: Sequence[int] | None) -> list[int]:
    length = tensor.shape[dim]
    if wanted is None:
        if not length:
            return [0] * parts
        each = math.ceil(length / parts)
        return [min(each, length - start) for start in range(0, length, each)]
    sizes = [operator.index(each) for each in wanted]
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
    found, start = [], 0
    for size in sizes:
        found.append(tensor[(*(slice(None),) * dim, slice(start, start + size))])
        start += size
    return found


def _streams(given: Any) -> Sequence[Stream | None]:
    if given is None:
        return ()
    if any(each is not None and not isinstance(each, Stream) for each in given):
        raise ForebayError("Unknown data type found in stream list. Need torch.cuda.Stream or None")
    return tuple(given)


def _on_stream(streams: Sequence[Stream | None], number: int, place: Device) -> Any:
    stream = streams[number] if number < len(streams) else None
    if stream is None:
        return nullcontext()
    if stream.device != place:
        raise ForebayError(
            f"Expected the device associated with the stream at index {number} (was {stream.device_index}) to match "
            f"the device supplied at that index (expected {place.index})"
        )
    return stream
