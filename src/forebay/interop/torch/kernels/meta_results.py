"""Results, without values, of operators that PyTorch has no kernel of the meta device for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["meta_results"]


def meta_results(name: str, given: Sequence[Any]) -> Any:
    """Return the results of an operator for tensors of the meta device, or None if the operator is not known.

    Parameters
    ----------
    name : str
        The operator, without its overload.
    given : sequence of Any
        Its positional arguments.
    """
    function = _RESULTS.get(name)
    return function(given) if function is not None else None


def _like(at: int, layout: torch.memory_format = torch.preserve_format) -> Callable[[Sequence[Any]], torch.Tensor]:
    """Return the rule of a result that is like an argument."""
    return lambda given: torch.empty_like(given[at], memory_format=layout)


def _with_mask(given: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result of a simulated quantization, and which elements were not clamped."""
    return torch.empty_like(given[0]), torch.empty_like(given[0], dtype=torch.bool)


def _learnable_gradients(given: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Return the gradients of the tensor, the scale and the zero point."""
    _, tensor, scale, zero_point = given[:4]
    return torch.empty_like(tensor), torch.empty_like(scale), torch.empty_like(zero_point)


def _extremes(given: Sequence[Any]) -> Any:
    """Return the smallest and the largest element, of all or along a dimension."""
    return torch.aminmax(given[0], **dict(zip(("dim", "keepdim"), given[1:], strict=False)))


def _statistics(given: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the variance of each channel, in single precision for halves."""
    dtype = torch.float32 if given[0].dtype in (torch.float16, torch.bfloat16) else given[0].dtype
    mean = given[0].new_empty(given[0].shape[1], dtype=dtype)
    return mean, torch.empty_like(mean)


_RESULTS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "_aminmax": _extremes,
    "_dirichlet_grad": _like(0),
    "_fake_quantize_learnable_per_channel_affine": _like(0),
    "_fake_quantize_learnable_per_channel_affine_backward": _learnable_gradients,
    "_fake_quantize_learnable_per_tensor_affine": _like(0),
    "_fake_quantize_learnable_per_tensor_affine_backward": _learnable_gradients,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _with_mask,
    "_logcumsumexp": _like(0, torch.contiguous_format),
    "_masked_softmax": _like(0),
    "_masked_softmax_backward": _like(0),
    "_sample_dirichlet": _like(0),
    "_standard_gamma_grad": _like(0),
    "batch_norm_update_stats": _statistics,
    "binomial": _like(0),
    "fake_quantize_per_channel_affine_cachemask": _with_mask,
    "fake_quantize_per_tensor_affine_cachemask": _with_mask,
    "fractional_max_pool3d_backward": _like(1),
    "glu_backward_jvp": _like(0),
    "glu_jvp": _like(0),
    "multi_margin_loss_backward": _like(1, torch.contiguous_format),
    "multilabel_margin_loss_backward": _like(1, torch.contiguous_format),
}
