"""Gradients of distances on emulated devices, which the GPU keeps for all pairs of rows before it adds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.scratch_memory import Scratch, nbytes_of

__all__ = ["DISTANCE_KERNELS"]

_aten = torch.ops.aten
_compute_between = generic_kernel(_aten._cdist_backward.default, values.device)
_compute_within = generic_kernel(_aten._pdist_backward.default, values.device)


def _between(
    gradient: torch.Tensor, one: torch.Tensor, other: torch.Tensor, p: float, distances: torch.Tensor
) -> torch.Tensor:  # fmt: skip
    result: torch.Tensor = _compute_between(gradient, one, other, p, distances)
    if result.numel() and other.numel():
        with Scratch(gradient.device) as scratch:
            scratch.take(nbytes_of(one) * other.shape[-2])
    return result


def _within(gradient: torch.Tensor, given: torch.Tensor, p: float, distances: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _compute_within(gradient, given, p, distances)
    if result.numel() and given.shape[0] > 1:
        with Scratch(gradient.device) as scratch:
            scratch.take(nbytes_of(given) * (given.shape[0] - 1))
    return result


DISTANCE_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_cdist_backward": _between,
    "aten::_pdist_backward": _within,
}
