"""Operators on lists of tensors on emulated devices: buffers of norms, and scalars in a tensor of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.scratch_memory import Scratch

__all__ = ["FOREACH_KERNELS", "on_one_device"]

_aten = torch.ops.aten
_AS_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_CHUNK = 65536  # elements
_compute_max = generic_kernel(_aten._foreach_max.default, values.device)
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


def _max(tensors: Sequence[torch.Tensor]) -> Any:
    """Return the largest elements. The largest of the chunks are in a buffer."""
    first = tensors[0]
    if not all(each.dtype == first.dtype and each.is_contiguous() and each.numel() for each in tensors):
        return _compute_max(tensors)
    with Scratch(first.device) as scratch:
        scratch.take((len(tensors) + 1) * 8)
        result = _compute_max(tensors)
        scratch.take(sum(-(-each.numel() // _CHUNK) for each in tensors) * first.itemsize)
    return result


def _with_scalars(packet: Any) -> Callable[..., Any]:
    """Return the kernel of an operator whose scalars are the elements of a tensor."""
    compute = generic_kernel(packet.ScalarList, values.device)

    def kernel(
        first: Sequence[torch.Tensor], one: Sequence[torch.Tensor], other: Sequence[torch.Tensor], scalars: torch.Tensor
    ) -> Any:
        if scalars.is_cuda:
            raise RuntimeError(f"Expected scalars to be on CPU, got {scalars.device} instead.")
        return compute(first, one, other, scalars.tolist())

    return kernel


def on_one_device(operator: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that calls another one for tensors of one device, and PyTorch's loop over them for several."""

    def run(*args: Any, **keywords: Any) -> Any:
        lists = [each for each in (*args, *keywords.values()) if isinstance(each, (list, tuple)) and each]
        device = next(each[0].device for each in lists if isinstance(each[0], torch.Tensor))
        for each in lists:
            if any(isinstance(one, torch.Tensor) and one.device != device for one in each):
                return operator.redispatch(_AS_CPU, *args, **keywords)
        return kernel(*args, **keywords)

    return run


FOREACH_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_foreach_max": _max,
    "aten::_foreach_norm.Scalar": _norm,
    **{
        f"aten::{name}.Tensor": _with_scalars(getattr(_aten, name))
        for name in ("_foreach_addcdiv", "_foreach_addcdiv_", "_foreach_addcmul", "_foreach_addcmul_")
    },
}
