"""Convolutions on emulated devices: the layouts of cuDNN's results, and the copies that it needs of some inputs.

Values are those of the CPU. What cuDNN may request besides is noted: Note [Workspaces of cuDNN].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch._prims_common import suggest_memory_format

from forebay.interop.torch.devices.emulated_memory import adopt, mixed_devices, open_torch_device
from forebay.interop.torch.kernels.convolution_workspaces import note_pass
from forebay.interop.torch.kernels.generic import caller_of
from forebay.interop.torch.kernels.host_errors import host_error
from forebay.interop.torch.kernels.reductions import take_reduction
from forebay.interop.torch.kernels.scratch_memory import Scratch, check_devices, give, nbytes_of, values_of
from forebay.interop.torch.kernels.unfolded_convolutions import (
    give_gradients_of_columns,
    give_result_of_columns,
    uses_columns,
)
from forebay.interop.torch.kernels.wide_types import over_values

__all__ = ["CONVOLUTION_KERNELS"]

_compute = over_values(torch.ops.aten.convolution.default)
_call = caller_of(torch.ops.aten.convolution.default)
_compute_backward = over_values(torch.ops.aten.convolution_backward.default)
_Optional: TypeAlias = torch.Tensor | None
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _format(one: torch.Tensor, other: torch.Tensor) -> torch.memory_format:
    """Return the layout that cuDNN uses for two tensors: channels are last if they are in either of them."""
    last = _CHANNELS_LAST.get(one.dim())
    if last is None or torch.float64 in (one.dtype, other.dtype):
        return torch.contiguous_format
    return last if last in (suggest_memory_format(one), suggest_memory_format(other)) else torch.contiguous_format


def _check_types(given: torch.Tensor, weight: torch.Tensor, bias: _Optional) -> None:
    if not given.is_cuda:
        elsewhere = weight if weight.is_cuda or bias is None else bias
        raise mixed_devices(elsewhere.device, given.device)
    for name, other in (("weight", weight), ("bias", bias)):
        if other is not None and (other.dtype != given.dtype or not other.is_cuda):
            raise RuntimeError(f"Input type ({given.type()}) and {name} type ({other.type()}) should be the same")
    check_devices(given, weight, bias)


def _may_be_refused(
    given: torch.Tensor, weight: torch.Tensor, bias: _Optional, transposed: bool, groups: int
) -> bool:  # fmt: skip
    """Return True if channels do not match, of which the meta device misses some."""
    channels, outputs = weight.shape[1] * groups, weight.shape[0]
    if transposed:
        channels, outputs = outputs, channels
    is_other = (
        given.dim() != weight.dim() or given.shape[1] != channels or bool(groups > 0 and weight.shape[0] % groups)
    )
    return is_other or (bias is not None and bias.shape != (outputs,))


def _copy(scratch: Scratch, tensor: torch.Tensor, layout: torch.memory_format) -> None:
    """Take the copy of a tensor in another layout, if it has not that layout."""
    if not tensor.is_contiguous(memory_format=layout):
        scratch.take(nbytes_of(tensor))


def _laid_out(result: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    """Return values with a layout. Without values, the meta kernel's results are contiguous."""
    return result.contiguous(memory_format=layout) if result.dim() in _CHANNELS_LAST else result.contiguous()


def _convolution(
    given: torch.Tensor, weight: torch.Tensor, bias: _Optional, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> torch.Tensor:  # fmt: skip
    _check_types(given, weight, bias)
    if _may_be_refused(given, weight, bias, transposed, groups):
        tensors = [values_of(given), values_of(weight), values_of(bias)]
        error = host_error(_call, [*tensors, stride, padding, dilation, transposed, output_padding, groups], {})
        if error is not None:
            raise error
    opened = open_torch_device(given.device)
    found = _compute(
        values_of(given), values_of(weight), values_of(bias), stride, padding, dilation, transposed, output_padding,
        groups,
    )  # fmt: skip
    if uses_columns(transposed, output_padding, stride):
        return give_result_of_columns(opened, given, weight, bias, found, groups)
    layout = _format(given, weight)
    with Scratch(opened) as scratch:
        _copy(scratch, given, layout)
        result = give(_laid_out(found, layout), opened)
        _copy(scratch, weight, layout)
        note_pass(opened, given, weight, found, groups, is_forward=True)
    return result


def _convolution_backward(
    gradient: torch.Tensor, given: torch.Tensor, weight: torch.Tensor, bias_sizes: Sequence[int] | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, output_mask: Sequence[bool],
) -> tuple[_Optional, ...]:  # fmt: skip
    opened = open_torch_device(given.device)
    found = _compute_backward(
        values_of(gradient), values_of(given), values_of(weight), bias_sizes, stride, padding, dilation, transposed,
        output_padding, groups, output_mask,
    )  # fmt: skip
    if uses_columns(transposed, output_padding, stride):
        return tuple(give_gradients_of_columns(opened, gradient, given, weight, found, groups))
    layout = _format(given, weight)
    results: list[_Optional] = [None, None, None]

    def give_gradient(at: int) -> None:
        results[at] = give(_laid_out(found[at], layout), opened)

    def give_bias() -> None:
        results[2] = adopt(found[2].contiguous(), opened)
        shape = torch.empty_strided(gradient.shape, gradient.stride(), dtype=gradient.dtype, device="meta")
        take_reduction(opened, shape, [0, *range(2, gradient.dim())], gradient.dtype)

    with Scratch(opened) as scratch:
        if _is_depthwise(given, weight, layout, stride, dilation, transposed, groups):
            if given.dim() == 5:
                for at in (0, 1):
                    if output_mask[at]:
                        give_gradient(at)
                _copy(scratch, gradient, layout)
                if output_mask[2]:
                    give_bias()
            else:
                _copy(scratch, gradient, layout)
                if output_mask[1]:
                    with Scratch(opened) as copies:
                        _copy(copies, given, layout)
                        give_gradient(1)
                if output_mask[0]:
                    give_gradient(0)
        else:
            if output_mask[1]:
                _copy(scratch, given, layout)
            is_early = transposed or suggest_memory_format(gradient) != layout
            if is_early:
                _copy(scratch, gradient, layout)
            if output_mask[0]:
                give_gradient(0)
                with Scratch(opened) as copies:
                    _copy(copies, weight, layout)
                    if not is_early:
                        _copy(copies, gradient, layout)
                    note_pass(opened, given, weight, gradient, groups)
            if output_mask[1]:
                with Scratch(opened) as copies:
                    if not is_early:
                        _copy(copies, gradient, layout)
                    give_gradient(1)
                    note_pass(opened, given, weight, gradient, groups)
    if output_mask[2] and results[2] is None:
        give_bias()
    return tuple(results)


def _is_depthwise(
    given: torch.Tensor, weight: torch.Tensor, layout: torch.memory_format, stride: Sequence[int],
    dilation: Sequence[int], transposed: bool, groups: int,
) -> bool:  # fmt: skip
    """Return True if PyTorch's own kernel of convolutions by channels computes one, and not cuDNN.

    PyTorch leaves those with channels last to cuDNN, and some of 32 and more channels of float16: which of those
    depends on a table of measured sizes, which is not repeated here. The copies are of the same sizes in either case.
    """
    channels = given.shape[1]
    if transposed or given.dim() < 4 or groups == 1 or groups != channels or weight.shape[0] % channels:
        return False
    of_cudnn = given.dtype == torch.float16 and given.dim() == 4 and channels >= 32
    return layout == torch.contiguous_format and not (of_cudnn and set(dilation) == {1} and len(set(stride)) == 1)


CONVOLUTION_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}
