"""Kernels of `torch.nn.SyncBatchNorm`, which only CUDA has: statistics of a process, their union, and the gradients.

Each channel has a mean and a scale, the reciprocal of its standard deviation, in the type of CUDA's kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

import torch
import torch.nn.modules._functions

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.arguments import forget_values
from forebay.interop.torch.devices.emulated_memory import adopt, open_torch_device
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.interop.torch.kernels.batch_normalization import has_channels_last, take_absent_weights, take_staging
from forebay.interop.torch.kernels.indexing import masks_select_all
from forebay.interop.torch.kernels.normalization import wide_type
from forebay.interop.torch.kernels.scratch_memory import Scratch, check_devices, give, type_name, values_of

__all__ = ["SYNCHRONIZED_KERNELS", "replace_synchronization"]

_Optional: TypeAlias = torch.Tensor | None


def replace_synchronization(names: NameReplacements) -> None:
    """Assume, where no values are computed, that each process normalizes an input: empty ones are left out."""
    if values.is_computed():
        return
    function: Any = torch.nn.modules._functions.SyncBatchNorm
    forward = function.forward

    @wraps(forward)
    def run(*args: Any) -> Any:
        with masks_select_all():
            return forward(*args)

    names.replace(function, "forward", staticmethod(run))


def _by_channel(vector: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Return the values of a vector with an element for each channel, as a tensor that broadcasts to an input."""
    return values_of(vector).view(-1, *[1] * (given.dim() - 2))


def _other_dimensions(given: torch.Tensor) -> list[int]:
    return [0, *range(2, given.dim())]


def _stats(given: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    if not given.is_floating_point():  # PyTorch's error on a GPU
        raise NotImplementedError(f"\"batch_norm_stats_cuda\" not implemented for '{type_name(given.dtype)}'")
    opened = open_torch_device(given.device)
    wide = values_of(given).to(wide_type(given.dtype))
    variance, mean = torch.var_mean(wide, _other_dimensions(given), correction=0)
    results = adopt(mean.contiguous(), opened), adopt(variance.add(eps).rsqrt().contiguous(), opened)
    with Scratch(opened) as scratch:
        take_staging(scratch, given, 4)
    return results


def _gather_stats_with_counts(
    given: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, running_mean: _Optional, running_var: _Optional,
    momentum: float, eps: float, counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    check_devices(given, mean, scale, running_mean, running_var, counts)
    return _join(mean, scale, running_mean, running_var, momentum, eps, values_of(counts))


def _join(
    mean: torch.Tensor, scale: torch.Tensor, running_mean: _Optional, running_var: _Optional, momentum: float,
    eps: float, counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the mean and the scale of parts, whose numbers of elements are over values."""
    opened = open_torch_device(mean.device)
    dtype = wide_type(mean.dtype)
    means, scales = (values_of(each).to(dtype) for each in (mean, scale))
    numbers = counts.to(dtype).view(-1, 1)
    total = numbers.sum()
    joint = (means * numbers).sum(0) / total
    squares = ((scales.pow(-2) - eps + (means - joint).square()) * numbers).sum(0)
    for running, now in ((running_mean, joint), (running_var, squares / (total - 1))):
        if running is not None:
            forget_values(running)
            old = values_of(running)
            old.copy_((1 - momentum) * old + momentum * now)
    return adopt(joint.contiguous(), opened), adopt((squares / total + eps).rsqrt().contiguous(), opened)


def _gather_stats(
    given: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, running_mean: _Optional, running_var: _Optional,
    momentum: float, eps: float, count: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    check_devices(given, mean, scale, running_mean, running_var)
    dtype = given.dtype if running_mean is None else running_mean.dtype
    counts = torch.full((mean.shape[0],), count, dtype=dtype, device=values.device())
    with Scratch(mean.device) as scratch:  # the numbers, as integers and in their type
        integers = scratch.take(8 * mean.shape[0])
        scratch.take(mean.shape[0] * dtype.itemsize)
        scratch.free(integers)
        return _join(mean, scale, running_mean, running_var, momentum, eps, counts)


def _normalized(
    given: torch.Tensor, weight: _Optional, bias: _Optional, mean: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    result = (values_of(given) - _by_channel(mean, given)) * _by_channel(scale, given)
    if weight is not None:
        result = result * _by_channel(weight, given)
    if bias is not None:
        result = result + _by_channel(bias, given)
    return result


def _like(given: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the device with the type and the layout of an input, and with the values of a result."""
    return give(torch.empty_like(values_of(given)).copy_(result), open_torch_device(given.device))


def _elemt(
    given: torch.Tensor, weight: _Optional, bias: _Optional, mean: torch.Tensor, scale: torch.Tensor, eps: float
) -> torch.Tensor:
    check_devices(given, weight, bias, mean, scale)
    result = _like(given, _normalized(given, weight, bias, mean, scale))
    with Scratch(given.device) as scratch:
        take_absent_weights(scratch, given, weight, bias)
    return result


def _elemt_out(
    given: torch.Tensor, weight: _Optional, bias: _Optional, mean: torch.Tensor, scale: torch.Tensor, eps: float, *,
    out: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    out.resize_(given.shape)
    forget_values(out)
    values_of(out).copy_(_normalized(given, weight, bias, mean, scale))
    return out


def _backward_reduce(
    gradient: torch.Tensor, given: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, weight: _Optional,
    input_g: bool, weight_g: bool, bias_g: bool,
) -> tuple[_Optional, ...]:  # fmt: skip
    check_devices(gradient, given, mean, scale, weight)
    opened = open_torch_device(given.device)
    transposed = has_channels_last(gradient) and has_channels_last(given)
    if weight is None and (weight_g or bias_g) and not transposed:
        raise RuntimeError("tensor does not have a device")  # PyTorch's
    outer = values_of(gradient).to(mean.dtype)
    sums = outer.sum(_other_dimensions(given))
    products = (outer * (values_of(given) - _by_channel(mean, given))).sum(_other_dimensions(given))
    of_weight, of_bias = products * values_of(scale), sums.clone()
    if weight is None:
        of_weight, of_bias = (each.new_empty(0, dtype=torch.float32) for each in (of_weight, of_bias))
    else:
        of_weight, of_bias = of_weight.to(weight.dtype), of_bias.to(weight.dtype)
    wanted = [transposed or each for each in (input_g, input_g, weight_g, bias_g)]
    found = (sums, products, of_weight, of_bias)
    results = tuple(adopt(each, opened) if keep else None for each, keep in zip(found, wanted, strict=True))
    with Scratch(opened) as scratch:
        if transposed:
            take_staging(scratch, given, 2)
    return results


def _backward_elemt(
    gradient: torch.Tensor, given: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, weight: _Optional,
    sum_dy: torch.Tensor, sum_dy_xmu: torch.Tensor, count: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    if weight is not None and weight.dtype != mean.dtype:
        expected, found = type_name(mean.dtype), type_name(weight.dtype)
        raise RuntimeError(f"Expected weight to have type {expected} but got {found}")
    total = values_of(count).sum()
    factor = _by_channel(scale, given)
    slope = _by_channel(sum_dy_xmu, given) / total * factor.square()
    centred = values_of(given) - _by_channel(mean, given)
    result = values_of(gradient) - _by_channel(sum_dy, given) / total - centred * slope
    result = result * factor
    return _like(given, result if weight is None else result * _by_channel(weight, given))


SYNCHRONIZED_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::batch_norm_stats": _stats,
    "aten::batch_norm_gather_stats": _gather_stats,
    "aten::batch_norm_gather_stats_with_counts": _gather_stats_with_counts,
    "aten::batch_norm_elemt": _elemt,
    "aten::batch_norm_elemt.out": _elemt_out,
    "aten::batch_norm_backward_reduce": _backward_reduce,
    "aten::batch_norm_backward_elemt": _backward_elemt,
}
