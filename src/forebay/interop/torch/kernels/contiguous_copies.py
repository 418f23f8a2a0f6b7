"""Kernels that make arguments contiguous on emulated devices, such as backward passes of pooling and resizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.scratch_memory import Scratch

__all__ = ["COPYING_KERNELS", "with_copy", "with_copy_before"]


def with_copy(operator: Any, arguments: Sequence[int] = (0,)) -> Callable[..., Any]:
    """Return the kernel of an operator that makes arguments contiguous, in order, after the result is allocated.

    Parameters
    ----------
    operator : OpOverload
        The operator.
    arguments : sequence of int, default=(0,)
        The places of the arguments.
    """
    compute = generic_kernel(operator, values.device)
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = compute(*args, **kwargs)
        with Scratch(args[0].device) as scratch:
            for at in arguments:
                scratch.contiguous(args[at] if at < len(args) else kwargs.get(names[at]))
        return result

    return kernel


def with_copy_before(operator: Any) -> Callable[..., Any]:
    """Return the kernel of an operator that makes its first argument contiguous before the result is allocated."""
    compute = generic_kernel(operator, values.device)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with Scratch(args[0].device) as scratch:
            scratch.contiguous(args[0])
            return compute(*args, **kwargs)

    return kernel


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
_compute_grid = generic_kernel(torch.ops.aten.grid_sampler_2d_backward.default, values.device)
COPYING_KERNELS: dict[str, Callable[..., Any]] = {
    f"aten::{name}": with_copy(getattr(torch.ops.aten, name).default)
    for name in (
        "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "_upsample_bicubic2d_aa_backward",
        "_upsample_bilinear2d_aa_backward", "_upsample_nearest_exact1d_backward",
        "_upsample_nearest_exact2d_backward", "_upsample_nearest_exact3d_backward", "adaptive_max_pool2d_backward",
        "adaptive_max_pool3d_backward", "avg_pool2d_backward", "avg_pool3d_backward",
        "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward",
        "reflection_pad1d_backward",
        "reflection_pad2d_backward", "upsample_bicubic2d_backward", "upsample_bilinear2d_backward",
        "upsample_linear1d_backward", "upsample_nearest1d_backward", "upsample_nearest2d_backward",
        "upsample_nearest3d_backward", "upsample_trilinear3d_backward",
    )
}  # fmt: skip
COPYING_KERNELS["aten::grid_sampler_2d_backward"] = _grid_sampler_backward
COPYING_KERNELS["aten::fractional_max_pool2d_backward"] = with_copy_before(
    torch.ops.aten.fractional_max_pool2d_backward.default
)
