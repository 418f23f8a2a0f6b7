"""Batch normalization on emulated devices by PyTorch's own implementation, with the buffers of its kernels.

Values are those of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from forebay.interop.torch.devices.arguments import forget_values
from forebay.interop.torch.devices.emulated_memory import adopt, open_torch_device
from forebay.interop.torch.kernels.normalization import statistics_for, wide_type
from forebay.interop.torch.kernels.scratch_memory import Scratch, check_devices, give, values_of
from forebay.interop.torch.kernels.wide_types import over_values

__all__ = ["BATCH_NORM_KERNELS", "has_channels_last", "take_absent_weights", "take_staging"]

_aten = torch.ops.aten
_compute_backward = over_values(_aten.native_batch_norm_backward.default)
_Optional: TypeAlias = torch.Tensor | None


def has_channels_last(given: torch.Tensor) -> bool:
    """Return True if channels are the last dimension in memory, for which there are kernels of their own."""
    if given.dim() == 4 and given.is_contiguous(memory_format=torch.channels_last):
        return True
    if given.dim() == 5 and given.is_contiguous(memory_format=torch.channels_last_3d):
        return True
    return bool(given.is_contiguous() and given.stride(1) == 1)


def take_staging(scratch: Scratch, given: torch.Tensor, vectors: int) -> None:
    """Take the buffers with which blocks of a kernel for the last dimension in memory join their sums.

    Only if the channels of `given`, the input, are last in memory, blocks share a channel. `vectors` is the number of
    sums for each channel and block.
    """
    if not has_channels_last(given) or not given.numel():
        return
    channels, rows = given.shape[1], given.numel() // given.shape[1]
    width = min(_power_of_two(channels), 32)
    height = min(_power_of_two(-(-rows // 16)), 512 // width)
    if width * height != 512:
        width = min(_power_of_two(channels), 512 // height)
    blocks = min(-(-rows // (height * 16)), 128)
    if blocks >= 8:
        scratch.take(vectors * channels * blocks * wide_type(given.dtype).itemsize)
        scratch.take(-(-channels // width) * 4)


def _power_of_two(number: int) -> int:
    """Return the largest power of two that is not larger."""
    return 1 << (number.bit_length() - 1)


def take_absent_weights(scratch: Scratch, given: torch.Tensor, weight: _Optional, bias: _Optional) -> None:
    """Take the numbers that replace absent weights if elements of the input are neither contiguous nor transposed."""
    if not given.is_contiguous() and not has_channels_last(given):
        for each in (weight, bias):
            if each is None:
                scratch.take(wide_type(given.dtype).itemsize)


def _batch_norm(operator: Any) -> Callable[..., Any]:
    """Return the kernel of an operator with running statistics, which follow the weights, or without."""
    compute = over_values(operator)
    training_at = [argument.name for argument in operator._schema.arguments].index("training") - 1

    def kernel(given: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
        check_devices(given, *(each for each in args if isinstance(each, torch.Tensor)))
        opened = open_torch_device(given.device)
        training = args[training_at]
        running = args[2:training_at]
        found = compute(values_of(given), *map(values_of, args))
        if training:
            for each in running:
                if each is not None:
                    forget_values(each)
        result, *statistics = found
        if not statistics[0].numel():  # the CPU returns none in evaluation
            statistics = [result.new_zeros(given.shape[1] if given.numel() else 0) for _ in statistics]
        wide = wide_type(given.dtype)
        results = give(result, opened), *(adopt(each.to(wide).contiguous(), opened) for each in statistics)
        with Scratch(opened) as scratch:
            if training:
                take_staging(scratch, given, 4)
        with Scratch(opened) as scratch:
            take_absent_weights(scratch, given, args[0], args[1])
        return results

    return kernel


def _batch_norm_backward(
    gradient: torch.Tensor, given: torch.Tensor, weight: _Optional, running_mean: _Optional, running_var: _Optional,
    save_mean: _Optional, save_invstd: _Optional, train: bool, eps: float, output_mask: Sequence[bool],
) -> tuple[_Optional, ...]:  # fmt: skip
    check_devices(gradient, given, weight)
    opened = open_torch_device(given.device)
    statistics = [  # the CPU has none in evaluation
        statistics_for(given, weight, each) if train and each is not None else None for each in (save_mean, save_invstd)
    ]
    found = _compute_backward(
        values_of(gradient), values_of(given), values_of(weight), values_of(running_mean), values_of(running_var),
        *statistics, train, eps, output_mask,
    )  # fmt: skip
    if not has_channels_last(given):
        return tuple(None if each is None else give(each, opened) for each in found)
    with Scratch(opened) as scratch:
        width = wide_type(given.dtype).itemsize
        if not train and (save_invstd is None or not save_invstd.numel()):  # cuDNN saves none in evaluation
            scratch.take(given.shape[1] * width)
        scratch.take(given.shape[1] * width)
        scratch.take(given.shape[1] * width)
        weights = [None if each is None else give(each, opened) for each in found[1:]]
        if has_channels_last(gradient):
            with Scratch(opened) as staging:
                take_staging(staging, given, 2)
        return None if found[0] is None else give(found[0], opened), *weights


BATCH_NORM_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::native_batch_norm": _batch_norm(_aten.native_batch_norm.default),
    "aten::_native_batch_norm_legit": _batch_norm(_aten._native_batch_norm_legit.default),
    "aten::_native_batch_norm_legit.no_stats": _batch_norm(_aten._native_batch_norm_legit.no_stats),
    "aten::native_batch_norm_backward": _batch_norm_backward,
}
