"""Kernels that make an argument contiguous on emulated devices: backward passes of pooling, resizing and padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.scratch_memory import Scratch

__all__ = ["COPYING_KERNELS", "with_copy"]


def with_copy(operator: Any) -> Callable[..., Any]:
    """Return the kernel of an operator that makes its first argument contiguous after the result is allocated."""
    compute = generic_kernel(operator, values.device)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = compute(*args, **kwargs)
        with Scratch(args[0].device) as scratch:
            scratch.contiguous(args[0])
        return result

    return kernel


COPYING_KERNELS: dict[str, Callable[..., Any]] = {
    f"aten::{name}": with_copy(getattr(torch.ops.aten, name).default)
    for name in (
        "adaptive_max_pool2d_backward", "avg_pool2d_backward", "max_pool2d_with_indices_backward",
        "reflection_pad2d_backward", "upsample_bicubic2d_backward", "upsample_bilinear2d_backward",
        "upsample_nearest2d_backward",
    )
}  # fmt: skip
