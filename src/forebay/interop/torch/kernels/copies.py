"""Kernels of copies between the host and emulated devices, and of reads of values by the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.assumptions.reads import copy_assumed, is_assumed_equal, read_number
from forebay.interop.torch.devices import host_placeholders, values
from forebay.interop.torch.devices.emulated_memory import alias, check_host, mixed_devices
from forebay.interop.torch.devices.pinned_memory import note_use
from forebay.interop.torch.kernels.generic import caller_of
from forebay.interop.torch.kernels.host_errors import host_error
from forebay.interop.torch.kernels.known_values import keep_copied, keep_known, known_values
from forebay.interop.torch.kernels.scratch_memory import Scratch

__all__ = ["COPY_KERNELS"]

_call_copy = caller_of(torch.ops.aten.copy_.default)


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    for each in (target, source):
        if each.device.type == "cpu":
            check_host(each)
    if non_blocking and source.is_cuda != target.is_cuda:
        note_use(source if target.is_cuda else target, target if target.is_cuda else source)
    if non_blocking and source.is_cuda and not target.is_cuda and source.dtype != target.dtype and source.numel():
        with Scratch(source.device) as scratch:  # converted before it is sent, where otherwise the host converts it
            scratch.take(source.numel() * target.itemsize)
    if values.is_computed():
        to = alias(target) if target.is_cuda else target
        to.copy_(alias(source) if source.is_cuda else source)
        return target
    if not target.is_cuda:
        known = known_values(source) if source.numel() else torch.empty(source.shape, dtype=source.dtype)
        if known is None:
            if host_placeholders.is_saving():
                host_placeholders.copy_without_values(target)
            else:
                copy_assumed(target, source)
            return target
        target.copy_(known)
        return target
    _check_sizes(target, source)
    if source.is_cuda:
        keep_copied(target, source)
    else:
        has_values = source.device.type == "cpu" and not host_placeholders.has_no_values(source.untyped_storage())
        keep_known(target, source if has_values else None)
    return target


def _check_sizes(target: torch.Tensor, source: torch.Tensor) -> None:
    """Raise PyTorch's error unless a tensor fits another one. Parameters of lazy modules have no `shape`."""
    sizes, given = target.size(), source.size()
    pairs = zip(reversed(sizes), reversed(given), strict=False)
    if len(given) > len(sizes) or any(one not in (1, size) for size, one in pairs):
        error = host_error(_call_copy, [target, source], {}, [target])
        if error is not None:
            raise error


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
    return read_number(tensor, ".item()") if known is None else known.item()


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.device != other.device:
        here, elsewhere = (one, other) if one.is_cuda else (other, one)
        raise mixed_devices(here.device, elsewhere.device)
    if one.shape != other.shape:
        return False
    if one.is_cuda and one.numel():  # the comparison of the elements, and whether all are equal
        with Scratch(one.device) as scratch:
            scratch.take(one.numel())
            scratch.take(1)
    if values.is_computed():
        return bool(alias(one).equal(alias(other)))
    if (known := known_values(one)) is None or (known_other := known_values(other)) is None:
        return is_assumed_equal(one, other)
    return bool(known.equal(known_other))


def _lazy_clone(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy, which is made at once: PyTorch's storages that copy when they are written need its allocator."""
    return tensor.clone()


COPY_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::copy_": _copy,
    "aten::fill_.Scalar": _fill_scalar,
    "aten::zero_": _zero,
    "aten::_local_scalar_dense": _local_scalar,
    "aten::_lazy_clone": _lazy_clone,
    "aten::equal": _equal,
}
