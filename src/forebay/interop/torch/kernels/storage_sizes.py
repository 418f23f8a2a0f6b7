"""Kernels that change or compare the shapes of tensors, and resize their storages, but read no elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import memory_of, needed_bytes, resize_storage
from forebay.interop.torch.kernels.generic import generic_kernel, view_kernel

__all__ = ["SIZE_KERNELS", "set_storage"]

_aten = torch.ops.aten
_set = view_kernel(_aten.set_.source_Storage_storage_offset)
_resize_allocated = generic_kernel(_aten.resize_.default, values.device)


def set_storage(
    target: torch.Tensor, source: Any, offset: int, size: Sequence[int], stride: Sequence[int] = ()
) -> torch.Tensor:
    """Set the storage, the shape and the strides of a tensor. A storage that is too small is resized."""
    try:
        _set(target, source, offset, size, stride)
    except RuntimeError as error:  # of PyTorch, as it cannot resize the storage: it has checked all arguments, and
        if "storage that is not resizable" not in str(error):  # set what it could
            raise
    else:
        return target
    resize_storage(target.untyped_storage(), memory_of(target), needed_bytes(target))
    return target


def _resize(
    target: torch.Tensor, size: Sequence[int], memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    memory, needed = memory_of(target), needed_bytes(target)
    if memory.nbytes >= needed:
        _resize_allocated(target, size, memory_format=memory_format)
        return target
    shape = torch.empty_strided(target.shape, target.stride(), dtype=target.dtype, device="meta")
    shape.resize_(size) if memory_format is None else shape.resize_(size, memory_format=memory_format)
    if shape.shape == target.shape and shape.stride() == target.stride():  # PyTorch does not look at the storage
        return target
    return set_storage(target, target.untyped_storage(), target.storage_offset(), shape.shape, shape.stride())


SIZE_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::is_set_to": view_kernel(_aten.is_set_to.default),
    "aten::resize_": _resize,
}
