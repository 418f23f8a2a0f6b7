"""Copies between emulated devices: the functions of torch._C behind `torch.cuda.comm` and `DataParallel`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.cuda.nccl
from torch._utils import (
    _flatten_dense_tensors,
    _flatten_sparse_tensors,
    _reorder_tensors_as,
    _take_tensors,
    _unflatten_dense_tensors,
    _unflatten_sparse_tensors,
)

import forebay.cuda.nccl
from forebay.interop.torch.devices.python_names import NameReplacements

__all__ = ["replace_communication"]


def replace_communication(names: NameReplacements) -> None:
    """Replace the functions, which only a build with CUDA has."""
    for function in (
        _broadcast, _broadcast_coalesced, _broadcast_out, _gather, _gather_out, _scatter, _scatter_out,
    ):  # fmt: skip
        names.replace(torch._C, function.__name__, function)
    names.replace(torch.cuda.nccl, "is_available", _no_nccl)
    names.replace(torch.cuda.nccl, "version", forebay.cuda.nccl.version)


def _no_nccl(tensors: object) -> bool:
    """Return False: PyTorch's operators then compute sums."""
    return False


def _indexed(index: int) -> torch.device:
    """Return the device of an index: -1 is the CPU."""
    return torch.device("cpu") if index == -1 else torch.device("cuda", index)


def _check_output(each: torch.Tensor, at: int) -> None:
    if not each.is_cuda:
        raise RuntimeError(
            f"Expected all output tensors to be CUDA tensors, but output tensor at index {at} has device "
            f"'{each.device}'"
        )


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> tuple[torch.Tensor, ...]:
    for each in devices:
        if each < 0:
            raise RuntimeError(f"Expected non-negative device index, but got {each}")
    places = [torch.device("cuda", each) for each in devices]
    made = [torch.empty(tensor.shape, dtype=tensor.dtype, device=each) for each in places if each != tensor.device]
    copies = iter([each.copy_(tensor, non_blocking=True) for each in made])
    return tuple(tensor if each == tensor.device else next(copies) for each in places)


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    for at, each in enumerate(out):
        _check_output(each, at)
        if each.shape != tensor.shape:
            raise RuntimeError(
                f"Expected all output tensors to have same shape as the source tensor {list(tensor.shape)}, but "
                f"output tensor at index {at} has shape {list(each.shape)}"
            )
    return tuple(each.copy_(tensor, non_blocking=True) for each in out)


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    """Copy small tensors together, in buffers of one type, as DataParallel does with the parameters."""
    if not devices:
        raise RuntimeError("Expected at least one device to broadcast to")
    if any(each.get_device() != devices[0] for each in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {devices[0]}")
    found: list[list[torch.Tensor]] = [[*tensors], *([] for _ in devices[1:])]
    with torch.cuda.device(devices[0]), torch.no_grad():
        for chunk in _take_tensors([*tensors], buffer_size):
            if chunk[0].is_sparse:
                indices, elements = _flatten_sparse_tensors(chunk)
                flat = zip(_broadcast(indices, devices), _broadcast(elements, devices), strict=True)
                parts = [_unflatten_sparse_tensors(each, chunk) for each in flat]
            else:
                flat_copies = _broadcast(_flatten_dense_tensors(chunk), devices)
                parts = [_unflatten_dense_tensors(each, chunk) for each in flat_copies]
            for copies, part in zip(found[1:], parts[1:], strict=True):
                copies.extend(each.data for each in part)
    return [[*_reorder_tensors_as(each, tensors)] for each in found]


def _scatter(
    tensor: torch.Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None = None, dim: int = 0,
    streams: Sequence[Any] | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is not None and len(chunk_sizes) != len(devices):
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got "
            f"len(devices) = {len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split([*chunk_sizes], dim)
    found = []
    for at, (chunk, index) in enumerate(zip(chunks, devices, strict=False)):
        if index < 0:
            raise RuntimeError(f"Expected non-negative device index, but got {index}")
        with _on_stream(streams, at, index):
            found.append(chunk.to(torch.device("cuda", index), non_blocking=True))
    return tuple(found)


def _on_stream(streams: Sequence[Any] | None, at: int, index: int) -> AbstractContextManager[Any]:
    stream = None if not streams or at >= len(streams) else streams[at]
    if stream is None:
        return nullcontext()
    if stream.device_index != index:
        raise RuntimeError(
            f"Expected the device associated with the stream at index {at} (was {stream.device_index}) to match the "
            f"device supplied at that index (expected {index})"
        )
    context: AbstractContextManager[Any] = torch.cuda.stream(stream)
    return context


def _scatter_out(
    tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int = 0, streams: Sequence[Any] | None = None
) -> tuple[torch.Tensor, ...]:
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    dim = _wrapped(dim, tensor)
    for at, each in enumerate(out):
        _check_output(each, at)
        if each.dim() != tensor.dim() or _without(each.shape, dim) != _without(tensor.shape, dim):
            raise RuntimeError(
                f"Output tensor at index {at} has incorrect shape: {list(each.shape)}. Expected same shape except for "
                f"scatter dim {dim} as the source tensor: {list(tensor.shape)}"
            )
    sizes = [each.size(dim) for each in out]
    if sum(sizes) != tensor.size(dim):
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match the source tensor size at dim "
            f"{dim}. Expected {tensor.size(dim)}, but got total size {sum(sizes)}"
        )
    for at, (each, chunk) in enumerate(zip(out, tensor.split(sizes, dim), strict=True)):
        with _on_stream(streams, at, each.get_device()):
            each.copy_(chunk, non_blocking=True)
    return tuple(out)


def _wrapped(dim: int, tensor: torch.Tensor) -> int:
    """Return a dimension counted from the first. Raises PyTorch's IndexError."""
    dims: int = max(1, tensor.dim())
    if not -dims <= dim < dims:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-dims}, {dims - 1}], but got {dim})")
    return dim % dims


def _without(shape: Sequence[int], dim: int) -> list[int]:
    return [each for at, each in enumerate(shape) if at != dim]


def _total(tensors: Sequence[torch.Tensor], dim: int) -> list[int]:
    """Return the shape of the concatenation. Raises PyTorch's error unless the tensors fit together."""
    expected = [*tensors[0].shape]
    for at, each in enumerate(tensors):
        if not each.is_cuda:
            raise RuntimeError(
                f"Expected all input tensors to be CUDA tensors, but tensor at index {at} has device '{each.device}'"
            )
        if each.dim() != len(expected):
            raise RuntimeError(
                f"Expected all input tensors to have the same number of dimensions, but tensor at index {at}has "
                f"{each.dim()} dimensions, (expected {len(expected)})"
            )
        expected[dim] = each.size(dim)
        if [*each.shape] != expected:
            raise RuntimeError(f"Tensor at index {at} has invalid shape {list(each.shape)}, but expected {expected}")
    expected[dim] = sum(each.size(dim) for each in tensors)
    return expected


def _gather(tensors: Sequence[torch.Tensor], dim: int = 0, destination: int | None = None) -> torch.Tensor:
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    dim = _wrapped(dim, tensors[0])
    index = torch.cuda.current_device() if destination is None else destination
    shape = _total(tensors, dim)
    last = all(each.is_contiguous(memory_format=torch.channels_last) for each in tensors)
    is_last = last and not all(each.is_contiguous() for each in tensors)
    layout = torch.channels_last if is_last else torch.contiguous_format
    made = torch.empty(shape, dtype=tensors[0].dtype, device=_indexed(index), memory_format=layout)
    return _copy_parts(tensors, made, dim)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int = 0) -> torch.Tensor:
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    dim = _wrapped(dim, tensors[0])
    expected = _total(tensors, dim)
    if [*out.shape] != expected:
        raise RuntimeError(f"Expected out tensor to have shape {expected}, but got {list(out.shape)}")
    return _copy_parts(tensors, out, dim)


def _copy_parts(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    chunks = out.split([each.size(dim) for each in tensors], dim)
    for each, chunk in zip(tensors, chunks, strict=True):
        chunk.copy_(each, non_blocking=out.is_cuda)
    return out
