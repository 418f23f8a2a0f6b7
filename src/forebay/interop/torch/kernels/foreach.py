"""Operators on lists of tensors on emulated devices: buffers of the norms, which the GPU computes in chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.scratch_memory import Scratch

__all__ = ["FOREACH_KERNELS"]

_aten = torch.ops.aten
_CHUNK = 65536  # elements
_compute_norm = generic_kernel(_aten._foreach_norm.Scalar, values.device)


def _norm(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
    """Return the norms. Where each tensor's chunks begin, and their partial norms, are in two buffers."""
    with Scratch(tensors[0].device) as scratch:
        first = tensors[0].dtype
        if all(each.dtype == first and each.is_contiguous() for each in tensors) and first.is_floating_point:
            width = 8 if first == torch.float64 else 4
            scratch.take((len(tensors) + 1) * 8)
            scratch.take(sum(-(-each.numel() // _CHUNK) for each in tensors) * width)
        return _compute_norm(tensors, *args, **kwargs)


FOREACH_KERNELS: dict[str, Callable[..., Any]] = {"aten::_foreach_norm.Scalar": _norm}
