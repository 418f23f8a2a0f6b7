"""Normalizations on emulated devices: statistics in the types of PyTorch's CUDA build, and the buffers of its kernels.

Values are those of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch._prims_common import suggest_memory_format

from forebay.interop.torch.devices.emulated_memory import adopt, open_torch_device
from forebay.interop.torch.devices.other_cards import answer
from forebay.interop.torch.kernels.reductions import take_reduction
from forebay.interop.torch.kernels.scratch_memory import (
    Scratch,
    check_devices,
    give,
    nbytes_of,
    type_name,
    values_of,
)
from forebay.interop.torch.kernels.wide_types import over_values
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["NORMALIZATION_KERNELS", "statistics_for", "wide_type"]

_compute_layer_norm = over_values(torch.ops.aten.native_layer_norm.default)
_compute_layer_norm_backward = over_values(torch.ops.aten.native_layer_norm_backward.default)
_compute_group_norm = over_values(torch.ops.aten.native_group_norm.default)
_compute_group_norm_backward = over_values(torch.ops.aten.native_group_norm_backward.default)
_Optional: TypeAlias = torch.Tensor | None
_HALVES = (torch.float16, torch.bfloat16)


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which the GPU computes statistics."""
    return torch.float32 if dtype in _HALVES else dtype


def statistics_for(given: torch.Tensor, weight: _Optional, statistics: torch.Tensor) -> torch.Tensor:
    """Return statistics in the type that the CPU's kernel expects."""
    mixed = weight is not None and weight.dtype != given.dtype
    return values_of(statistics).to(wide_type(given.dtype) if mixed else given.dtype)


def _check_arguments(given: torch.Tensor, weight: _Optional, bias: _Optional) -> None:
    """Raise PyTorch's error unless all are on one device and of one type, which the CPU does not demand."""
    check_devices(given, weight, bias)
    for each in (weight, bias):
        if each is not None and each.dtype != given.dtype:
            raise RuntimeError(f"expected scalar type {type_name(given.dtype)} but found {type_name(each.dtype)}")


def _layer_norm(
    given: torch.Tensor, normalized_shape: Sequence[int], weight: _Optional, bias: _Optional, eps: float
) -> tuple[torch.Tensor, ...]:
    _check_arguments(given, weight, bias)
    opened = open_torch_device(given.device)
    result, mean, scale = _compute_layer_norm(
        values_of(given), normalized_shape, values_of(weight), values_of(bias), eps
    )
    with Scratch(opened) as scratch:
        scratch.contiguous(given)
        return give(result.contiguous(), opened), *(adopt(_as_wide(each, given), opened) for each in (mean, scale))


def _as_wide(statistics: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    return statistics.to(wide_type(given.dtype)).contiguous()


def _layer_norm_backward(
    gradient: torch.Tensor, given: torch.Tensor, normalized_shape: Sequence[int], mean: torch.Tensor,
    scale: torch.Tensor, weight: _Optional, bias: _Optional, output_mask: Sequence[bool],
) -> tuple[_Optional, ...]:  # fmt: skip
    found = _compute_layer_norm_backward(
        values_of(gradient), values_of(given), normalized_shape, statistics_for(given, weight, mean),
        statistics_for(given, weight, scale), values_of(weight), values_of(bias), output_mask,
    )  # fmt: skip
    return _give_gradients(gradient, given, mean, found, normalized_shape)


def _give_gradients(
    gradient: torch.Tensor, given: torch.Tensor, statistics: torch.Tensor, found: Sequence[_Optional],
    normalized_shape: Sequence[int],
) -> tuple[_Optional, ...]:  # fmt: skip
    """Return gradients as tensors of the device, with the buffers of the kernel that sums those of the weights."""
    opened = open_torch_device(given.device)
    rows, columns = statistics.numel(), torch.Size(normalized_shape).numel()
    with Scratch(opened) as scratch:
        scratch.contiguous(given)
        results = [None if each is None else give(each.contiguous(), opened) for each in found]
        scratch.contiguous(gradient)
        of_weights = [at for at, each in enumerate(results) if at and each is not None]
        if rows > 64 * 1024 and of_weights and _is_narrow(opened, columns):
            with Scratch(opened) as parts:
                blocks = -(-rows // 32)
                for at in of_weights:
                    parts.take(blocks * columns * _itemsize(found[at]))
                for at in of_weights:
                    if (summed := found[at]) is not None:
                        results[at] = give(summed.clone(), opened)
                        part = torch.empty(blocks, columns, dtype=summed.dtype, device="meta")
                        take_reduction(opened, part, [0], summed.dtype)
    return tuple(results)


def _is_narrow(opened: OpenDevice, columns: int) -> bool:
    """Return True if the columns alone would leave multiprocessors idle."""
    return bool(answer(opened, ("multi_processor_count",), lambda count: columns // 32 < count / 2, ("norm", columns)))


def _itemsize(tensor: _Optional) -> int:
    return 0 if tensor is None else tensor.itemsize


def _rms_norm(
    given: torch.Tensor, normalized_shape: Sequence[int], weight: _Optional, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    check_devices(given, weight)
    opened = open_torch_device(given.device)
    if eps is None:
        eps = torch.finfo(wide_type(given.dtype)).eps
    wide = values_of(given).to(wide_type(given.dtype))
    dimensions = tuple(range(-len(normalized_shape), 0))
    scale = torch.rsqrt(wide.pow(2).mean(dimensions, keepdim=True).add(eps))
    result = (wide * scale).to(given.dtype)
    if weight is not None:
        result = result * values_of(weight)
    with Scratch(opened) as scratch:
        scratch.contiguous(given)
        return give(result.contiguous(), opened), adopt(scale.contiguous(), opened)


def _rms_norm_backward(
    gradient: torch.Tensor, given: torch.Tensor, normalized_shape: Sequence[int], scale: torch.Tensor,
    weight: _Optional, output_mask: Sequence[bool],
) -> tuple[_Optional, ...]:  # fmt: skip
    dtype = wide_type(given.dtype)
    outer, wide, factor = (values_of(each).to(dtype) for each in (gradient, given, scale))
    dimensions = tuple(range(-len(normalized_shape), 0))
    of_given = of_weight = None
    if output_mask[0]:
        inner = outer if weight is None else outer * values_of(weight).to(dtype)
        of_scale = (inner * wide).mean(dimensions, keepdim=True)
        of_given = (inner * factor - wide * of_scale * factor.pow(3)).to(given.dtype)
    if output_mask[1] and weight is not None:
        before = tuple(range(given.dim() - len(normalized_shape)))
        products = outer * wide * factor
        of_weight = (products.sum(before) if before else products).to(weight.dtype)
    found = _give_gradients(gradient, given, scale, (of_given, of_weight), normalized_shape)
    return found[0], found[1]


def _group_norm(
    given: torch.Tensor, weight: _Optional, bias: _Optional, batch: int, channels: int, size: int, groups: int,
    eps: float,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    _check_arguments(given, weight, bias)
    opened = open_torch_device(given.device)
    found = _compute_group_norm(
        values_of(given), values_of(weight), values_of(bias), batch, channels, size, groups, eps
    )
    results = [give(found[0], opened), *(adopt(each.to(given.dtype).contiguous(), opened) for each in found[1:])]
    width, layout = wide_type(given.dtype).itemsize, suggest_memory_format(given)
    with Scratch(opened) as scratch:
        if not given.is_contiguous(memory_format=layout):
            scratch.take(nbytes_of(given))
        if given.dtype in _HALVES:
            scratch.take(batch * groups * width)
            scratch.take(batch * groups * width)
        if size > 1 and (weight is not None or bias is not None or layout != torch.contiguous_format):
            scratch.take(batch * channels * width)
            scratch.take(batch * channels * width)
    return tuple(results)


def _group_norm_backward(
    gradient: torch.Tensor, given: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, weight: _Optional,
    batch: int, channels: int, size: int, groups: int, output_mask: Sequence[bool],
) -> tuple[_Optional, ...]:  # fmt: skip
    opened = open_torch_device(given.device)
    found = _compute_group_norm_backward(
        values_of(gradient), values_of(given), values_of(mean), values_of(scale), values_of(weight), batch, channels,
        size, groups, output_mask,
    )  # fmt: skip
    width, layout = wide_type(given.dtype).itemsize, suggest_memory_format(given)
    with Scratch(opened) as outer:
        for each in (gradient, given):
            if not each.is_contiguous(memory_format=layout):
                outer.take(nbytes_of(each))
        results = tuple(None if each is None else give(each, opened) for each in found)
        with Scratch(opened) as sums:
            if size > 1:
                sums.take(batch * channels * width)
                sums.take(batch * channels * width)
            with Scratch(opened) as factors:
                of_weight = Scratch(opened)
                if output_mask[0]:
                    factors.take(batch * groups * width)
                    factors.take(batch * groups * width)
                    if weight is not None and size > 1 and layout == torch.contiguous_format:
                        of_weight.take(batch * channels * width)
            of_weight.close()
    return results


NORMALIZATION_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::_fused_rms_norm": _rms_norm,
    "aten::_fused_rms_norm_backward": _rms_norm_backward,
    "aten::native_group_norm": _group_norm,
    "aten::native_group_norm_backward": _group_norm_backward,
}
