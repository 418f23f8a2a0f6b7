"""Kernels of copies between the host and emulated devices, and of reads of values by the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import alias, memory_of, mixed_devices

__all__ = ["COPY_KERNELS", "forget_values", "keep_known", "known_values"]

_KNOWN_ELEMENTS = 4096  # values of at most so many elements are kept although values are not computed


def known_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a tensor, if they are known although no values are computed: constants from the host."""
    memory = memory_of(tensor)
    if memory.known is None or tensor.numel() * tensor.itemsize != memory.nbytes or tensor.dtype != memory.known.dtype:
        return None
    return memory.known.view(-1).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def keep_known(tensor: torch.Tensor, source: torch.Tensor | None) -> None:
    """Note the values of a tensor, or that they are unknown."""
    memory = memory_of(tensor)
    memory.known = None
    small = source is not None and 0 < tensor.numel() <= _KNOWN_ELEMENTS
    if small and source is not None and tensor.numel() * tensor.itemsize == memory.nbytes:
        known = torch.empty(tensor.numel(), dtype=tensor.dtype)
        known.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(source)
        memory.known = known


def forget_values(argument: Any) -> None:
    """Note that the values of tensors are unknown from now on."""
    if isinstance(argument, torch.Tensor):
        if argument.is_cuda:
            memory_of(argument).known = None
    elif isinstance(argument, (list, tuple)):
        for each in argument:
            forget_values(each)


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if values.is_computed():
        to = alias(target) if target.is_cuda else target
        to.copy_(alias(source) if source.is_cuda else source)
        return target
    if not target.is_cuda:
        known = known_values(source)
        if known is None:
            raise values.needs_values("a copy to the CPU")
        target.copy_(known)
        return target
    torch.broadcast_shapes(target.shape, source.shape)
    if source.is_cuda:
        keep_known(target, known_values(source))
    else:
        keep_known(target, source if source.device.type == "cpu" else None)
    return target


def _fill_scalar(target: torch.Tensor, value: complex) -> torch.Tensor:
    if values.is_computed():
        alias(target).fill_(value)
    else:
        keep_known(target, torch.tensor(value, dtype=target.dtype))
    return target


def _zero(target: torch.Tensor) -> torch.Tensor:
    return _fill_scalar(target, 0)


def _local_scalar(tensor: torch.Tensor) -> Any:
    if values.is_computed():
        return alias(tensor).item()
    known = known_values(tensor)
    if known is None:
        raise values.needs_values(".item()")
    return known.item()


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.device != other.device:
        here, elsewhere = (one, other) if one.is_cuda else (other, one)
        raise mixed_devices(here.device, elsewhere.device)
    if one.shape != other.shape:
        return False
    if not values.is_computed():
        raise values.needs_values("torch.equal")
    found: bool = alias(one).equal(alias(other))
    return found


COPY_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::copy_": _copy,
    "aten::fill_.Scalar": _fill_scalar,
    "aten::zero_": _zero,
    "aten::_local_scalar_dense": _local_scalar,
    "aten::equal": _equal,
}
