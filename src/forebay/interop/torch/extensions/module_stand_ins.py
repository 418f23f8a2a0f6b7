"""Modules and optimizers of apex and deepspeed that are PyTorch's with other names.

Their kernels allocate what PyTorch's fused ones do: normalizations keep the mean and the inverse deviation of each row,
and Adam has two tensors of state for each parameter.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["ADAM", "NORMALIZATION", "OPTIMIZERS", "FusedAdam", "FusedLayerNorm", "FusedRMSNorm", "FusedSGD"]


class FusedLayerNorm(torch.nn.LayerNorm):  # type: ignore[misc]  # mypy finds no PyTorch
    """apex.normalization.FusedLayerNorm, which `memory_efficient` lets keep the result instead of the input."""

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, memory_efficient: bool = False
    ) -> None:
        del memory_efficient
        super().__init__(normalized_shape, eps, elementwise_affine)


class FusedRMSNorm(torch.nn.RMSNorm):  # type: ignore[misc]  # as above
    """apex.normalization.FusedRMSNorm."""

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, memory_efficient: bool = False
    ) -> None:
        del memory_efficient
        super().__init__(normalized_shape, eps, elementwise_affine)


class FusedAdam(torch.optim.AdamW):  # type: ignore[misc]  # as above
    """FusedAdam of apex and deepspeed: AdamW, or Adam with `adam_w_mode=False`, in one kernel for many tensors."""

    def __init__(
        self, params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, adam_w_mode: bool = True, weight_decay: float = 0.0, amsgrad: bool = False,
        set_grad_none: bool = True, **_: Any,
    ) -> None:  # fmt: skip
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        del bias_correction
        self._sets_none = set_grad_none
        super().__init__(params, lr, betas, eps, weight_decay, fused=True)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = adam_w_mode

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Delete the gradients, or set them to zero with `set_grad_none=False`."""
        super().zero_grad(self._sets_none if set_to_none is None else set_to_none)


class FusedSGD(torch.optim.SGD):  # type: ignore[misc]  # as above
    """apex.optimizers.FusedSGD."""

    def __init__(
        self, params: Any, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, fused=True)


NORMALIZATION = {
    "FusedLayerNorm": FusedLayerNorm, "FusedRMSNorm": FusedRMSNorm, "MixedFusedLayerNorm": FusedLayerNorm,
    "MixedFusedRMSNorm": FusedRMSNorm,
}  # fmt: skip
ADAM = {"FusedAdam": FusedAdam}
OPTIMIZERS = {**ADAM, "FusedSGD": FusedSGD}
