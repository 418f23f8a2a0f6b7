"""Kernels of matrix products: the copies that cuBLAS needs of some layouts, and the workspaces.

Values are those of the CPU. Which of cuBLAS and cuBLASLt computes a product decides about the workspace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.arguments import forget_values
from forebay.interop.torch.devices.emulated_memory import open_torch_device
from forebay.interop.torch.kernels.generic import caller_of, generic_kernel
from forebay.interop.torch.kernels.host_errors import host_error
from forebay.interop.torch.kernels.scratch_memory import (
    Scratch,
    check_devices,
    give,
    is_dense,
    nbytes_of,
    type_name,
    values_of,
)
from forebay.interop.torch.kernels.workspaces import blas_workspace, lt_workspace

__all__ = ["MATRIX_KERNELS"]

_aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_LT_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _refuse_integers(tensor: torch.Tensor, kernel: str) -> None:
    if not (tensor.is_floating_point() or tensor.is_complex()):  # the CPU multiplies integers, a GPU does not
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{type_name(tensor.dtype)}'")


def _check_types(operator: Any, *tensors: torch.Tensor) -> None:
    """Raise PyTorch's error for factors of several types, which the meta device accepts."""
    if len({each.dtype for each in tensors}) > 1 and all(each.is_cuda for each in tensors):
        error = host_error(caller_of(operator), tensors, {})
        if error is not None:
            raise error


def _is_usable(matrix: torch.Tensor) -> bool:
    """Return True if cuBLAS can read or write a matrix where it is."""
    (rows, columns), (down, right) = matrix.shape, matrix.stride()
    return is_dense(matrix) or (right == 1 and down >= max(1, columns)) or (down == 1 and right >= max(1, rows))


def _is_usable_batch(batch: torch.Tensor) -> bool:
    (_, rows, columns), (_, down, right) = batch.shape, batch.stride()
    rowwise = right == 1 and down >= max(1, columns)
    return bool(rowwise or (down == 1 and right >= max(1, rows)) or batch.is_contiguous())


def _copies(scratch: Scratch, is_usable: Callable[[torch.Tensor], bool], *matrices: torch.Tensor) -> None:
    for matrix in matrices:
        if not is_usable(matrix):
            scratch.take(nbytes_of(matrix))


def _uses_lt(bias: torch.Tensor, one: torch.Tensor, other: torch.Tensor, beta: complex) -> bool:
    """Return True if cuBLASLt computes a product and adds the bias: of halves, also a matrix, with any factor."""
    length, columns = other.shape
    if bias.dim() == 2 and bias.dtype == one.dtype and one.dtype in _HALVES:
        return bias.shape[1] == columns and bias.is_contiguous() and length > 1 and columns > 1 and beta != 0
    fits = bias.dim() == 1 and bias.shape[0] == columns and bias.is_contiguous() and length > 1 and columns > 1
    return fits and beta == 1 and one.dtype in _LT_TYPES


def _product(operator: Any, is_usable: Callable[[torch.Tensor], bool], at: int) -> Callable[..., Any]:
    """Return the kernel of an operator whose arguments `at` and `at + 1` are multiplied."""
    compute = generic_kernel(operator, values.device)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        one, other = args[at], args[at + 1]
        _check_types(operator, *args[: at + 2])
        _refuse_integers(one, "addmm_cuda" if one.dim() == 2 else "baddbmm_cuda")
        result = compute(*args, **kwargs)
        if result.numel() and one.numel():
            with Scratch(one.device) as scratch:
                _copies(scratch, is_usable, other, one)
                blas_workspace(scratch)
        return result

    return kernel


def _addmm(operator: Any) -> Callable[..., Any]:
    compute = generic_kernel(operator, values.device)

    def kernel(bias: torch.Tensor, one: torch.Tensor, other: torch.Tensor, *, beta: complex = 1, **kwargs: Any) -> Any:
        _check_types(operator, bias, one, other)
        _refuse_integers(one, "addmm_cuda")
        result = compute(bias, one, other, beta=beta, **kwargs)
        if result.numel() and one.numel():
            with Scratch(one.device) as scratch:
                _copies(scratch, _is_usable, other, one)
                if result is not bias and _uses_lt(bias, one, other, beta):
                    lt_workspace(scratch)
                else:
                    blas_workspace(scratch)
        return result

    return kernel


def _typed_product(name: str, at: int) -> Callable[..., Any]:
    """Return the kernel of a product whose result has another type than its factors, `at` and `at + 1`."""
    compute = getattr(_aten, name)

    def kernel(*args: Any, out: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
        *tensors, dtype = args
        one, other = tensors[at], tensors[at + 1]
        check_devices(*tensors)
        if one.dtype != other.dtype:
            raise RuntimeError("input dtypes must be the same")
        if dtype != one.dtype and not (dtype == torch.float32 and one.dtype in (torch.float16, torch.bfloat16)):
            raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
        if out is not None and out.dtype != dtype:
            raise RuntimeError("out_dtype must be the same as the dtype of the provided out tensor")
        _refuse_integers(one, "addmm_cuda" if one.dim() == 2 else "baddbmm_cuda")
        found = compute(*(values_of(each).to(dtype) for each in tensors), **kwargs)
        if out is None:
            result = give(found, open_torch_device(one.device))
        else:
            forget_values(out)
            values_of(out.resize_(found.shape)).copy_(found)
            result = out
        with Scratch(one.device) as scratch:
            _copies(scratch, _is_usable if one.dim() == 2 else _is_usable_batch, other, one)
            if name == "addmm" and out is None and _uses_lt(tensors[0], one, other, kwargs.get("beta", 1)):
                lt_workspace(scratch)
            else:
                blas_workspace(scratch)
        return result

    return kernel


def _vector_product(operator: Any, at: int) -> Callable[..., Any]:
    """Return the kernel of a product whose argument `at` is a matrix or vector."""
    compute = generic_kernel(operator, values.device)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = compute(*args, **kwargs)
        left, right = args[at], args[at + 1]
        if left.numel() or left.dim() == 1:
            with Scratch(left.device) as scratch:
                if left.dim() == 2 and 1 not in left.stride():
                    scratch.contiguous(left)
                if left.dim() == 2 and right.stride(0) == 0:  # an expanded number
                    scratch.take(nbytes_of(right))
                blas_workspace(scratch)
        return result

    return kernel


def _sum_of_products(bias: torch.Tensor, one: torch.Tensor, other: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Return the sum of the products of a batch, which are added one after another."""
    result: torch.Tensor = _compute_sum(bias, one, other, **kwargs)
    if result.numel() and one.numel():
        for _ in range(one.shape[0]):
            with Scratch(one.device) as scratch:
                blas_workspace(scratch)
    return result


_compute_sum = generic_kernel(_aten.addbmm.default, values.device)
MATRIX_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::mm": _product(_aten.mm.default, _is_usable, 0),
    "aten::mm.out": _product(_aten.mm.out, _is_usable, 0),
    "aten::bmm": _product(_aten.bmm.default, _is_usable_batch, 0),
    "aten::bmm.out": _product(_aten.bmm.out, _is_usable_batch, 0),
    "aten::baddbmm": _product(_aten.baddbmm.default, _is_usable_batch, 1),
    "aten::baddbmm_": _product(_aten.baddbmm_.default, _is_usable_batch, 1),
    "aten::baddbmm.out": _product(_aten.baddbmm.out, _is_usable_batch, 1),
    "aten::addmm": _addmm(_aten.addmm.default),
    "aten::addmm_": _addmm(_aten.addmm_.default),
    "aten::addmm.out": _addmm(_aten.addmm.out),
    **{
        f"aten::{name}.{overload}": _typed_product(name, at)
        for name, at in (("mm", 0), ("bmm", 0), ("addmm", 1), ("baddbmm", 1))
        for overload in ("dtype", "dtype_out")
    },
    "aten::_addmm_activation": _addmm(_aten._addmm_activation.default),
    "aten::addbmm": _sum_of_products,
    "aten::addmv": _vector_product(_aten.addmv.default, 1),
    "aten::addmv_": _vector_product(_aten.addmv_.default, 1),
    "aten::addmv.out": _vector_product(_aten.addmv.out, 1),
    "aten::dot": _vector_product(_aten.dot.default, 0),
    "aten::vdot": _vector_product(_aten.vdot.default, 0),
}
