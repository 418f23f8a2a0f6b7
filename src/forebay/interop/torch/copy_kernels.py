"""Kernels of copies between the host and emulated devices, and of reads of values by the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch import values
from forebay.interop.torch.emulated_memory import alias, memory_of

__all__ = ["COPY_KERNELS", "constant_of", "set_constant"]


def constant_of(tensor: torch.Tensor) -> complex | bool | None:
    """Return the value of a tensor of one element, if it is known although no values are computed."""
    return memory_of(tensor).constant if tensor.numel() == 1 and memory_of(tensor).nbytes == tensor.itemsize else None


def set_constant(tensor: torch.Tensor, constant: complex | bool | None) -> None:
    """Note the value of the only element of a tensor."""
    if tensor.numel() == 1:
        memory_of(tensor).constant = constant


def copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:  # noqa: ARG001 -- copies complete at once
    if values.is_computed():
        to = alias(target) if target.is_cuda else target
        to.copy_(alias(source) if source.is_cuda else source)
        return target
    if not target.is_cuda:
        constant = constant_of(source)
        if constant is None:
            raise values.needs_values("a copy to the CPU")
        target.fill_(constant)
        return target
    if source.is_cuda:
        constant = constant_of(source)
    else:
        constant = source.item() if source.numel() == 1 and source.device.type == "cpu" else None
    torch.broadcast_shapes(target.shape, source.shape)
    set_constant(target, constant)
    return target


def fill_scalar(target: torch.Tensor, value: complex) -> torch.Tensor:
    if values.is_computed():
        alias(target).fill_(value)
    else:
        set_constant(target, value)
    return target


def zero(target: torch.Tensor) -> torch.Tensor:
    return fill_scalar(target, 0)


def local_scalar(tensor: torch.Tensor) -> Any:
    if values.is_computed():
        return alias(tensor).item()
    constant = constant_of(tensor)
    if constant is None:
        raise values.needs_values(".item()")
    return torch.tensor(constant, dtype=tensor.dtype).item()


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not values.is_computed():
        raise values.needs_values("torch.equal")
    return alias(one).equal(alias(other) if other.is_cuda else other)


COPY_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::copy_": copy_,
    "aten::fill_.Scalar": fill_scalar,
    "aten::zero_": zero,
    "aten::_local_scalar_dense": local_scalar,
    "aten::equal": equal,
}
