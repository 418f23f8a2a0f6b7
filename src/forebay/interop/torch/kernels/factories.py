"""Kernels of tensor factories: the device's memory is allocated first, so that a full device raises its error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import (
    adopt,
    allocate_bytes,
    is_replaying,
    open_torch_device,
    without_block,
)  # fmt: skip
from forebay.interop.torch.kernels.generic import view_kernel
from forebay.interop.torch.kernels.storage_sizes import set_storage

__all__ = ["FACTORY_KERNELS"]


def _empty(
    size: Sequence[int], dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None,
    pin_memory: bool | None = None, memory_format: torch.memory_format | None = None,
) -> torch.Tensor:  # fmt: skip
    _refuse(layout, pin_memory)
    shape = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
    return _new(shape, device)


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype | None = None, layout: torch.layout | None = None,
    device: Any = None, pin_memory: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    _refuse(layout, pin_memory)
    return _new(torch.empty_strided(size, stride, dtype=dtype, device="meta"), device)


def _refuse(layout: torch.layout | None, pin_memory: bool | None) -> None:
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    if layout not in (None, torch.strided):  # PyTorch's type of error for an operator that a device does not have
        raise NotImplementedError(f"tensors with the layout {layout} are not supported on emulated devices")


def _new(shape: torch.Tensor, device: Any) -> torch.Tensor:
    opened = open_torch_device(device)
    if not values.is_computed():
        return adopt(shape, opened)
    block = None if is_replaying() else allocate_bytes(opened, shape.untyped_storage().nbytes())
    return adopt(torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype), opened, block)


def _zero_tensor(
    size: Sequence[int], dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return zeros that occupy no memory of the device, as the gradients that autograd leaves undefined."""
    _refuse(layout, pin_memory)
    return without_block(torch.zeros((), dtype=dtype, device=values.device()).expand(size), open_torch_device(device))


def _set_empty(target: torch.Tensor) -> torch.Tensor:
    source = torch.empty(0, dtype=target.dtype, device=target.device)
    return target.set_(source.untyped_storage(), 0, (0,), (1,))


_aten = torch.ops.aten
FACTORY_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::empty.memory_format": _empty,
    "aten::empty_strided": _empty_strided,
    "aten::_efficientzerotensor": _zero_tensor,
    "aten::set_": _set_empty,
    "aten::set_.source_Storage": view_kernel(_aten.set_.source_Storage),  # they read no memory
    "aten::set_.source_Storage_storage_offset": set_storage,
    "aten::set_.source_Tensor": view_kernel(_aten.set_.source_Tensor),
}
