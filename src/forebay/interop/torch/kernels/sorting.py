"""Sorts on emulated devices: buffers of PyTorch's kernels for short rows, and estimates for long ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.scratch_memory import Scratch, nbytes_of

__all__ = ["SORTING_KERNELS"]

_aten = torch.ops.aten
_SHORT = 4096  # elements of a row that a block sorts


def _sort(operator: Any, at: int) -> Callable[..., Any]:
    """Return the kernel of a sort whose argument `at` is the dimension."""
    compute = generic_kernel(operator, values.device)

    def kernel(given: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = compute(given, *args, **kwargs)
        if given.dim() and given.numel():
            dim = args[at - 1] if len(args) >= at else kwargs.get("dim", -1)
            length = given.size(dim)  # raises PyTorch's error, which the meta device does not
            with Scratch(given.device) as scratch:
                if length <= _SHORT:
                    scratch.take(length * 8)  # the indices of a row
                else:
                    scratch.take(nbytes_of(given, torch.int64))
                    scratch.take(given.numel() * (given.itemsize + 8))  # an estimate of the sort's own buffer
        return result

    return kernel


def _topk(given: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    result = _compute_topk(given, *args, **kwargs)
    with Scratch(given.device) as scratch:
        scratch.contiguous(given)
    return result


_compute_topk = generic_kernel(_aten.topk.default, values.device)
SORTING_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::sort": _sort(_aten.sort.default, 1),
    "aten::sort.stable": _sort(_aten.sort.stable, 1),
    "aten::topk": _topk,
}
