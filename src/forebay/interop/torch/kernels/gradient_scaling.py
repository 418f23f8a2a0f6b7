"""Kernels of the gradient scaler of mixed precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.arguments import forget_values
from forebay.interop.torch.devices.emulated_memory import alias
from forebay.interop.torch.kernels.known_values import keep_known

__all__ = ["SCALING_KERNELS"]


def _unscale(gradients: list[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor) -> None:
    """Scale gradients. Without values they are taken to be finite, so that the step of the optimizer is not skipped."""
    _check(gradients, found_inf, inverse)
    if values.is_computed():
        torch._amp_foreach_non_finite_check_and_unscale_([*map(alias, gradients)], alias(found_inf), alias(inverse))
    else:
        forget_values(gradients)
        keep_known(found_inf, torch.zeros(()))


def _check(gradients: list[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor) -> None:
    """Raise the errors of CUDA's kernel."""
    named = [*(("self", each) for each in gradients), ("found_inf", found_inf), ("inv_scale", inverse)]
    first = next(each.device for _, each in named if each.is_cuda)
    for name, each in named:
        if each.device != first:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but got {name} is on {each.device}, different from "
                f"other tensors on {first} (when checking argument in method wrapper_CUDA___amp_foreach_non_finite_"
                "check_and_unscale_)"
            )
    for name, each in (("inv_scale", inverse), ("found_inf", found_inf)):
        if each.numel() != 1:
            raise RuntimeError(f"{name} must be a 1-element tensor.")
        if each.dtype != torch.float32:
            raise RuntimeError(f"{name} must be a float tensor.")


SCALING_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_amp_foreach_non_finite_check_and_unscale_": _unscale,
}
