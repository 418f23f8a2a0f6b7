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
    if values.is_computed():
        torch._amp_foreach_non_finite_check_and_unscale_([*map(alias, gradients)], alias(found_inf), alias(inverse))
    else:
        forget_values(gradients)
        keep_known(found_inf, torch.zeros(()))


SCALING_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_amp_foreach_non_finite_check_and_unscale_": _unscale,
}
