"""Reductions of segments on emulated devices: the lengths that CUDA's kernels compute from offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.scratch_memory import Scratch

__all__ = ["SEGMENT_KERNELS"]

_aten = torch.ops.aten
_compute = generic_kernel(_aten.segment_reduce.default, values.device)
_compute_backward = generic_kernel(_aten._segment_reduce_backward.default, values.device)


def _segment_reduce(*args: Any, offsets: torch.Tensor | None = None, **keywords: Any) -> torch.Tensor:
    result: torch.Tensor = _compute(*args, offsets=offsets, **keywords)
    _take_lengths(result, offsets)
    return result


def _segment_reduce_backward(
    gradient: torch.Tensor, *args: Any, offsets: torch.Tensor | None = None, **keywords: Any
) -> torch.Tensor:  # fmt: skip
    with Scratch(gradient.device) as scratch:
        scratch.contiguous(gradient)
        result: torch.Tensor = _compute_backward(gradient, *args, offsets=offsets, **keywords)
        _take_lengths(result, offsets)
    return result


def _take_lengths(result: torch.Tensor, offsets: torch.Tensor | None) -> None:
    if offsets is not None and offsets.shape[-1]:
        with Scratch(result.device) as scratch:
            scratch.take(offsets.shape[:-1].numel() * (offsets.shape[-1] - 1) * offsets.itemsize)


SEGMENT_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::segment_reduce": _segment_reduce,
    "aten::_segment_reduce_backward": _segment_reduce_backward,
}
