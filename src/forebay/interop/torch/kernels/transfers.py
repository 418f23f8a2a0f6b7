"""Copies between the host and an emulated device: buffers for tensors that are not contiguous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.kernels.copies import COPY_KERNELS
from forebay.interop.torch.kernels.scratch_memory import Scratch, is_dense, nbytes_of

__all__ = ["TRANSFER_KERNELS"]

_copy = COPY_KERNELS["aten::copy_"]


def _transfer(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy. Without equal types and layouts on both sides, what is not contiguous on the device is copied there."""
    if target.is_cuda == source.is_cuda or not target.numel() or _is_direct(target, source):
        _copy(target, source, non_blocking)
        return target
    with Scratch(target.device if target.is_cuda else source.device) as scratch:
        if target.is_cuda:
            scratch.contiguous(target)
        elif source.shape != target.shape or not source.is_contiguous():
            scratch.take(nbytes_of(target, source.dtype))
        _copy(target, source, non_blocking)
    return target


def _is_direct(target: torch.Tensor, source: torch.Tensor) -> bool:
    same = target.dtype == source.dtype and target.shape == source.shape
    return same and (target.stride() == source.stride() or target.numel() == 1) and is_dense(target)


TRANSFER_KERNELS: dict[str, Callable[..., Any]] = {"aten::copy_": _transfer}
