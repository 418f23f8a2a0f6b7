"""Batch normalization by cuDNN on emulated devices, where PyTorch's CUDA build chooses it.

As observed of PyTorch 2.15 over the oracle with a library in place of cuDNN. The reserve and the workspace that cuDNN
asks for are not counted: it documents that layouts with the channels first need none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch._prims_common import suggest_memory_format

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.arguments import forget_values
from forebay.interop.torch.devices.emulated_memory import adopt, open_torch_device
from forebay.interop.torch.kernels.batch_normalization import BATCH_NORM_KERNELS
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.normalization import statistics_for
from forebay.interop.torch.kernels.scratch_memory import Scratch, check_devices, first_of, give, nbytes_of, values_of
from forebay.interop.torch.kernels.wide_types import over_values

__all__ = ["CUDNN_BATCH_NORM_COMPOSITES", "CUDNN_BATCH_NORM_KERNELS"]

_aten = torch.ops.aten
_compute = over_values(_aten.native_batch_norm.default)
_compute_backward = over_values(_aten.native_batch_norm_backward.default)
_Optional: TypeAlias = torch.Tensor | None
# The most images for which PyTorch trusts cuDNN, in training and in evaluation.
_MOST_TRAINED, _MOST_EVALUATED = 880_801, 65_535


def _is_of_cudnn(
    given: torch.Tensor, weight: _Optional, bias: _Optional, running_mean: _Optional, running_var: _Optional,
    training: bool,
) -> bool:  # fmt: skip
    """Return True if PyTorch leaves a batch normalization to cuDNN."""
    if not given.is_cuda or given.dim() < 3 or not given.numel() or weight is None or bias is None:
        return False
    if torch.bfloat16 in (given.dtype, weight.dtype):
        return False
    if given.dtype == torch.float16 and weight.dtype != torch.float32:
        return False
    if (running_mean is None or running_var is None) and (not training or running_mean is not running_var):
        return False
    return bool(given.shape[0] <= (_MOST_TRAINED if training else _MOST_EVALUATED))


def _batch_norm(
    given: torch.Tensor, weight: _Optional, bias: _Optional, running_mean: _Optional, running_var: _Optional,
    training: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> torch.Tensor:  # fmt: skip
    """Return the normalized input by cuDNN's operator or PyTorch's own, which have gradients."""
    if not cudnn_enabled or not _is_of_cudnn(given, weight, bias, running_mean, running_var, training):
        return first_of(
            _aten._batch_norm_impl_index(given, weight, bias, running_mean, running_var, training, momentum, eps, False)
        )
    given = given.contiguous(memory_format=suggest_memory_format(given))
    others = [None if each is None else each.contiguous() for each in (weight, bias, running_mean, running_var)]
    results = _aten.cudnn_batch_norm(given, *others, training, momentum, eps)
    del given, others  # before the results that are not returned, as C++ does
    result: torch.Tensor = results[0]
    return result


def _forward(
    given: torch.Tensor, weight: torch.Tensor, bias: _Optional, running_mean: _Optional, running_var: _Optional,
    training: bool, momentum: float, eps: float,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    check_devices(given, weight, bias, running_mean, running_var)
    opened = open_torch_device(given.device)
    found = _compute(
        *(values_of(each) for each in (given, weight, bias, running_mean, running_var)), training, momentum, eps
    )
    if training:
        for each in (running_mean, running_var):
            if each is not None:
                forget_values(each)
    result = give(found[0].contiguous(memory_format=suggest_memory_format(given)), opened)
    statistics = [
        adopt(each.to(weight.dtype).contiguous() if training else _nothing(weight), opened) for each in found[1:]
    ]
    return result, *statistics, adopt(_nothing(weight).to(torch.uint8), opened)


def _nothing(weight: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=weight.dtype, device=values_of(weight).device)


def _backward(
    given: torch.Tensor, gradient: torch.Tensor, weight: torch.Tensor, running_mean: _Optional, running_var: _Optional,
    save_mean: torch.Tensor, save_var: torch.Tensor, epsilon: float, reserve: torch.Tensor,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    check_devices(gradient, given, weight)
    opened = open_torch_device(given.device)
    layout = suggest_memory_format(given)
    statistics = [statistics_for(given, weight, each) for each in (save_mean, save_var)]
    found = _compute_backward(
        *(values_of(each) for each in (gradient, given, weight, running_mean, running_var)), *statistics, True, epsilon,
        [True, True, True],
    )  # fmt: skip
    with Scratch(opened) as scratch:
        if not gradient.is_contiguous(memory_format=layout):
            scratch.take(nbytes_of(gradient))
        of_given = give(found[0].contiguous(memory_format=layout), opened)
        return of_given, *(adopt(each.to(weight.dtype).contiguous(), opened) for each in found[1:])


def _backward_of_update(
    gradient: torch.Tensor, given: torch.Tensor, weight: torch.Tensor, running_mean: _Optional, running_var: _Optional,
    save_mean: _Optional, save_var: _Optional, update: bool, *args: Any,
) -> Any:  # fmt: skip
    """Return the gradients of a normalization that returns its reserve, with the copy that cuDNN needs."""
    arguments = gradient, given, weight, running_mean, running_var, save_mean, save_var, update, *args[:2]
    if not _is_of_cudnn(given, weight, weight, running_mean, running_var, update):
        return BATCH_NORM_KERNELS["aten::native_batch_norm_backward"](*arguments)
    with Scratch(given.device) as scratch:
        if not gradient.is_contiguous(memory_format=suggest_memory_format(given)):
            scratch.take(nbytes_of(gradient))
        return _compute_backward_of_update(
            gradient, given, weight, running_mean, running_var, save_mean, save_var, update, *args
        )


_compute_backward_of_update = generic_kernel(_aten.batch_norm_backward.default, values.device)
CUDNN_BATCH_NORM_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::cudnn_batch_norm": _forward,
    "aten::cudnn_batch_norm_backward": _backward,
    "aten::batch_norm_backward": _backward_of_update,
}
CUDNN_BATCH_NORM_COMPOSITES: dict[str, Callable[..., Any]] = {"aten::batch_norm": _batch_norm}
