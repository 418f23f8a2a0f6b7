"""Kernels that make arguments contiguous on emulated devices, such as backward passes of pooling and resizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.arguments import tensors_of
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.scratch_memory import Scratch

__all__ = ["COPYING_KERNELS", "with_copy", "with_copy_before"]

_aten = torch.ops.aten


def with_copy(
    operator: Any, arguments: Sequence[int] = (0,), *, like: int | None = None, of_results: bool = False
) -> Callable[..., Any]:
    """Return the kernel of an operator that makes arguments contiguous, in order, after the result is allocated.

    Parameters
    ----------
    operator : OpOverload
        The operator.
    arguments : sequence of int, default=(0,)
        The places of the arguments.
    like : int, optional
        The place of the argument whose layout, such as channels_last, the copies have. None: the usual one.
    of_results : bool, default=False
        True: the kernel writes to contiguous copies of results that are not contiguous, which it makes first.
    """
    compute = generic_kernel(operator, values.device)
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = compute(*args, **kwargs)
        layout = torch.contiguous_format if like is None else suggest_memory_format(args[like])
        with Scratch(args[0].device) as scratch:
            for each in tensors_of(result) if of_results else ():
                scratch.contiguous(each)
            for at in arguments:
                scratch.contiguous(args[at] if at < len(args) else kwargs.get(names[at]), layout)
        return result

    return kernel


def with_copy_before(
    operator: Any, arguments: Sequence[int] = (0,), *, like: int | None = None
) -> Callable[..., Any]:  # fmt: skip
    """Return the kernel of an operator that makes arguments contiguous before the result is allocated."""
    compute = generic_kernel(operator, values.device)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        layout = torch.contiguous_format if like is None else suggest_memory_format(args[like])
        with Scratch(args[0].device) as scratch:
            for at in arguments:
                scratch.contiguous(args[at], layout)
            return compute(*args, **kwargs)

    return kernel


def _adaptive_backward(gradient: torch.Tensor, given: torch.Tensor) -> Any:
    """Return the gradient of averages. The kernel for channels_last takes any layout."""
    result = _compute_adaptive(gradient, given)
    if suggest_memory_format(given) == torch.contiguous_format:
        with Scratch(gradient.device) as scratch:
            scratch.contiguous(gradient)
    return result


def _grid_sampler_backward(
    gradient: torch.Tensor, given: torch.Tensor, grid: torch.Tensor, interpolation: int, padding: int,
    align_corners: bool, output_mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Return the gradients of samples on a grid. cuDNN, which computes samples with corners, needs all elements."""
    of_cudnn = not interpolation and not padding and align_corners and given.shape[1] <= _MOST_CHANNELS
    with Scratch(given.device) as scratch:
        if of_cudnn and given.dtype != torch.bfloat16 and 0 in gradient.stride():
            scratch.contiguous(gradient)
        return _compute_grid(gradient, given, grid, interpolation, padding, align_corners, output_mask)


_MOST_CHANNELS = 1024
_compute_grid = generic_kernel(_aten.grid_sampler_2d_backward.default, values.device)
_compute_adaptive = generic_kernel(_aten._adaptive_avg_pool2d_backward.default, values.device)
COPYING_KERNELS: dict[str, Callable[..., Any]] = {
    **{
        f"aten::{name}": with_copy(getattr(_aten, name).default)
        for name in (
            "_adaptive_avg_pool3d_backward", "_upsample_bicubic2d_aa_backward", "_upsample_bilinear2d_aa_backward",
            "_upsample_nearest_exact3d_backward", "adaptive_max_pool3d", "adaptive_max_pool3d_backward", "avg_pool3d",
            "avg_pool3d_backward", "reflection_pad1d_backward", "reflection_pad2d",
            "reflection_pad2d_backward", "upsample_bicubic2d_backward", "upsample_linear1d_backward",
            "upsample_nearest3d_backward",
        )
    },
    **{
        f"aten::{name}": with_copy(getattr(_aten, name).default, like=0)
        for name in (
            "_upsample_nearest_exact1d", "_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d",
            "_upsample_nearest_exact2d_backward", "avg_pool2d", "max_pool2d_with_indices", "max_pool3d_with_indices",
            "upsample_bilinear2d_backward", "upsample_nearest1d", "upsample_nearest1d_backward", "upsample_nearest2d",
            "upsample_nearest2d_backward",
        )
    },
    **{
        f"aten::{name}": with_copy(getattr(_aten, name).default, arguments, of_results=True)
        for name, arguments in {
            "_upsample_nearest_exact3d": [0], "adaptive_max_pool2d": [0], "adaptive_max_pool2d_backward": [0, 2],
            "upsample_nearest3d": [0], "upsample_trilinear3d_backward": [0],
        }.items()
    },
    "aten::_adaptive_avg_pool2d": with_copy_before(_aten._adaptive_avg_pool2d.default, like=0),
    "aten::_adaptive_avg_pool2d_backward": _adaptive_backward,
    "aten::_adaptive_avg_pool3d": with_copy_before(_aten._adaptive_avg_pool3d.default),
    "aten::avg_pool2d_backward": with_copy(_aten.avg_pool2d_backward.default, [1, 0], like=1),
    "aten::max_pool2d_with_indices_backward":
        with_copy(_aten.max_pool2d_with_indices_backward.default, [1, 0, 7], like=1),
    "aten::max_pool3d_with_indices_backward": with_copy(_aten.max_pool3d_with_indices_backward.default, like=1),
    "aten::max_unpool2d": with_copy_before(_aten.max_unpool2d.default, [0, 1]),
    "aten::max_unpool3d": with_copy_before(_aten.max_unpool3d.default, [0, 1]),
    "aten::fractional_max_pool2d_backward": with_copy_before(_aten.fractional_max_pool2d_backward.default),
    "aten::grid_sampler_2d_backward": _grid_sampler_backward,
}  # fmt: skip
