"""Elementwise operators on emulated devices whose CUDA kernels convert or copy arguments first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import adopt, mixed_devices, open_torch_device
from forebay.interop.torch.kernels.contiguous_copies import with_copy
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.scratch_memory import Scratch, nbytes_of, values_of
from forebay.interop.torch.kernels.wide_types import over_values

__all__ = ["ELEMENTWISE_KERNELS"]

_aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)


def _power_of_number(operator: Any) -> Callable[..., Any]:
    """Return the kernel of a number to the power of a tensor: the GPU gets the number as a tensor, except 1."""
    compute = generic_kernel(operator, values.device)

    def kernel(base: complex, exponent: torch.Tensor, **kwargs: Any) -> Any:
        result = compute(base, exponent, **kwargs)
        if base != 1 or isinstance(base, bool):
            with Scratch(exponent.device) as scratch:
                scratch.take(1 if isinstance(base, bool) else 16 if isinstance(base, complex) else 8)
        return result

    return kernel


def _where(condition: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return elements of two tensors. Those of another type than the result, or on the host, are converted before."""
    devices = [each.device for each in (condition, one, other) if each.is_cuda]
    dtype = torch.result_type(one, other)
    with Scratch(devices[0]) as scratch:
        for each in (one, other):
            if each.dtype != dtype or not each.is_cuda:
                scratch.take(nbytes_of(each, dtype))
        if condition.dtype != torch.bool or not condition.is_cuda:
            scratch.take(condition.numel())
        result: torch.Tensor = _compute_where(condition, one, other)
    return result


def _renorm(operator: Any) -> Callable[..., Any]:
    """Return the kernel, which computes the norms of slices, and factors in the type of the tensor."""
    compute = generic_kernel(operator, values.device)

    def kernel(given: torch.Tensor, p: float, dim: int, maxnorm: float) -> torch.Tensor:
        result: torch.Tensor = compute(given, p, dim, maxnorm)
        if given.numel():
            others = [at for at in range(given.dim()) if at != dim % given.dim()]
            wide = torch.float32 if given.dtype in _HALVES else given.dtype
            norms = torch.linalg.vector_norm(given, p, others, keepdim=True, dtype=wide)
            if wide != given.dtype:
                with Scratch(given.device) as scratch:
                    scratch.take(nbytes_of(norms, given.dtype))
            del norms
        return result

    return kernel


def _columns(given: torch.Tensor, *args: Any) -> torch.Tensor:
    """Return the blocks of an image as columns. The memory of the result begins with the size of the image."""
    with Scratch(given.device) as scratch:
        first = nbytes_of(given)
        scratch.take(first)
        shape = _aten.im2col.default(torch.empty(given.shape, dtype=given.dtype, device="meta"), *args)
        if nbytes_of(shape) <= first:  # it is large enough
            scratch.close()
        scratch.contiguous(given)
        result: torch.Tensor = _compute_columns(given, *args)
    return result


def _image(columns: torch.Tensor, *args: Any) -> torch.Tensor:
    """Return the sums of columns as an image. The memory of the result has at least the size of the columns."""
    found = over_values(_aten.col2im.default)(values_of(columns), *args)
    if found.untyped_storage().nbytes() < nbytes_of(columns):
        found = found.new_empty(columns.numel())[: found.numel()].view(found.shape).copy_(found)
    result = adopt(found, open_torch_device(columns.device))
    with Scratch(columns.device) as scratch:
        scratch.contiguous(columns)
    return result


def _real_of_complex(operator: Any) -> Callable[..., Any]:
    """Return the kernel of an operator with real results. The GPU computes complex ones, and copies a part of them."""
    compute = generic_kernel(operator, values.device)

    def kernel(given: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = compute(given)
        if given.is_complex():
            with Scratch(given.device) as scratch:
                scratch.take(nbytes_of(given))
        return result

    return kernel


def _ldexp(given: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """Return the products with powers of 2: by one kernel for integers, else by the operators that it consists of."""
    if not exponent.is_floating_point():
        result: torch.Tensor = _compute_ldexp(given, exponent)
        return result
    return given * torch.pow(2.0, exponent)


def _roll(given: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """Return the shifted elements, one dimension after another, each of a contiguous tensor."""
    found = given
    last = max(0, len(dims) - 1)
    for at in range(last):
        found = _roll_one(found, shifts[at : at + 1], dims[at : at + 1])
    return _roll_one(found, shifts[last:], dims[last:])


def _roll_one(given: torch.Tensor, shifts: Sequence[int], dims: Sequence[int]) -> torch.Tensor:
    result: torch.Tensor = _compute_roll(given, shifts, dims)
    if dims:
        with Scratch(given.device) as scratch:
            scratch.contiguous(given)
    return result


def _unfold_backward(
    gradient: torch.Tensor, sizes: Sequence[int], dim: int, size: int, step: int
) -> torch.Tensor:  # fmt: skip
    """Return the gradient of overlapping windows. The GPU makes the places of a dimension."""
    result: torch.Tensor = _compute_unfold_backward(gradient, sizes, dim, size, step)
    if sizes and result.numel():
        with Scratch(gradient.device) as scratch:
            scratch.take(sizes[dim] * 8)
    return result


def _with_scalar(operator: Any, refusal: str) -> Callable[..., Any]:
    """Return the kernel of an operator whose first factor may be no number of the CPU; the second one may."""
    compute = generic_kernel(operator, values.device)

    def kernel(given: torch.Tensor, one: torch.Tensor, other: torch.Tensor, **keywords: Any) -> Any:
        if given.is_cuda and not one.is_cuda and not one.dim():
            raise RuntimeError(refusal) if refusal else mixed_devices(given.device, one.device)
        return compute(given, one, other, **keywords)

    return kernel


_ADDCMUL = (
    "CPU Scalar support for tensor1 argument is not supported when calling addcmul on CUDA tensors. However, CPU "
    "Scalar support for tensor2 is supported, please swap your tensor1 and tensor2 terms."
)
_compute_roll = generic_kernel(_aten.roll.default, values.device)
_compute_unfold_backward = generic_kernel(_aten.unfold_backward.default, values.device)
_compute_ldexp = generic_kernel(_aten.ldexp.Tensor, values.device)
_compute_where = generic_kernel(_aten.where.self, values.device)
_compute_columns = generic_kernel(_aten.im2col.default, values.device)
_SCANS: Sequence[str] = ("cumsum", "cumprod", "_logcumsumexp")
ELEMENTWISE_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::pow.Scalar": _power_of_number(_aten.pow.Scalar),
    "aten::pow.Scalar_out": _power_of_number(_aten.pow.Scalar_out),
    "aten::where.self": _where,
    "aten::renorm": _renorm(_aten.renorm.default),
    "aten::renorm_": _renorm(_aten.renorm_.default),
    "aten::im2col": _columns,
    "aten::col2im": _image,
    "aten::abs": _real_of_complex(_aten.abs.default),
    "aten::angle": _real_of_complex(_aten.angle.default),
    "aten::ldexp.Tensor": _ldexp,
    **{
        f"aten::{name}{suffix}": _with_scalar(getattr(getattr(_aten, name), suffix[1:] or "default"), refusal)
        for names, refusal in ((("addcmul", "addcmul_"), _ADDCMUL), (("addcdiv", "addcdiv_"), ""))
        for name in names
        for suffix in ("", ".out")
        if not (suffix and name.endswith("_"))
    },
    "aten::roll": _roll,
    "aten::unfold_backward": _unfold_backward,
    **{f"aten::{name}": with_copy(getattr(_aten, name).default) for name in _SCANS},
}
