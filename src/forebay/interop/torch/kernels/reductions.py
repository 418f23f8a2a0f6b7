"""Reductions on emulated devices: buffers that blocks of threads share, and copies of inputs of other types."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.other_cards import card_bytes
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.reduction_geometry import Buffers, reduction_buffers
from forebay.interop.torch.kernels.scratch_memory import Scratch, nbytes_of
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["REDUCTION_KERNELS", "take_reduction"]

_aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_MOMENTS = {name: getattr(_aten, name) for name in ("std", "var", "std_mean", "var_mean")}
_Dims = Callable[[tuple[Any, ...], dict[str, Any]], Sequence[int]]
_Bytes = Callable[[torch.dtype], int]


def take_reduction(
    opened: OpenDevice, given: torch.Tensor, dims: Sequence[int], dtype: torch.dtype, partial: _Bytes | None = None
) -> None:
    """Take the buffers of a reduction in `dtype`, and free them."""
    size = (partial or _sum_bytes)(dtype)
    layout = tuple(given.shape), given.stride(), tuple(dims), size
    names = ("multi_processor_count", "max_threads_per_multi_processor")

    def buffers(processors: int, threads: int) -> Buffers:
        return reduction_buffers(given, dims, size, processors, threads)

    of_results = card_bytes(opened, names, lambda *card: buffers(*card).partial, ("partial", layout))
    if of_results:
        of_counters = card_bytes(opened, names, lambda *card: buffers(*card).counters, ("counters", layout))
        with Scratch(opened) as scratch:
            scratch.take(of_results)
            scratch.take(of_counters)


def _sum_bytes(dtype: torch.dtype) -> int:
    return 4 if dtype in _HALVES else int(dtype.itemsize)


def _own_bytes(dtype: torch.dtype) -> int:
    return int(dtype.itemsize)


def _byte(dtype: torch.dtype) -> int:
    return 1


def _indexed_bytes(dtype: torch.dtype) -> int:
    return 16


def _pair_bytes(dtype: torch.dtype) -> int:
    return 2 * int(dtype.itemsize)


def _moment_bytes(dtype: torch.dtype) -> int:
    return 32 if dtype == torch.float64 else 16


def _all_dims(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[int]:
    return ()


def _dims_at(at: int) -> _Dims:
    def dims(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[int]:
        found = args[at] if at < len(args) else kwargs.get("dim")
        return [] if found is None else [found] if isinstance(found, int) else list(found)

    return dims


def _reduction(
    operator: Any, dims: _Dims, partial: _Bytes, *, converts: bool = False, copies: bool = False
) -> Callable[..., Any]:  # fmt: skip
    """Return the kernel of a reduction.

    `converts` is True if an input of another type than the result is converted before, except halves that the GPU adds
    in single precision; `copies` if an input that is not contiguous is copied, where all elements are reduced.
    """
    compute = generic_kernel(operator, values.device)

    def kernel(given: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = compute(given, *args, **kwargs)
        first = result[0] if isinstance(result, (tuple, list)) else result
        if not given.numel():
            return result
        with Scratch(given.device) as scratch:
            source = given
            if copies and not args and not kwargs:
                scratch.contiguous(given)
                source = torch.empty(given.shape, dtype=given.dtype, device="meta")
            if (
                converts
                and first.dtype != given.dtype
                and not (given.dtype in _HALVES and first.dtype == torch.float32)
            ):
                scratch.take(nbytes_of(given, first.dtype))
                source = torch.empty_strided(given.shape, given.stride(), dtype=first.dtype, device="meta")
            take_reduction(scratch.opened, source, dims((given, *args), kwargs), source.dtype, partial)
        return result

    return kernel


def _question(operator: Any, dims: _Dims) -> Callable[..., Any]:
    """Return the kernel of any() or all(). A number without dimensions is converted to bool before."""
    compute = _reduction(operator, dims, _byte)

    def kernel(given: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = compute(given, *args, **kwargs)
        if not given.dim() and given.dtype != torch.bool:
            with Scratch(given.device) as scratch:
                scratch.take(1)
        return result

    return kernel


def _count_nonzero(given: torch.Tensor, dim: Sequence[int]) -> torch.Tensor:
    """Return the sums of a mask, as CUDA's kernel, which converts it to integers."""
    mask = given if given.dtype == torch.bool else given != 0
    return mask.sum(list(dim)) if dim else mask.sum()


def _logsumexp(
    given: torch.Tensor, dim: Sequence[int], keepdim: bool = False, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return what PyTorch's composite operator does, with its temporary results: the CPU has one kernel for it."""
    if not given.is_floating_point() or not given.numel():
        return (
            _compute_logsumexp(given, dim, keepdim) if out is None else _write_logsumexp(given, dim, keepdim, out=out)
        )
    largest = given.amax(list(dim), True)
    squeezed = largest if keepdim else largest.squeeze(tuple(dim))
    magnitude = squeezed.abs()
    infinite = magnitude == math.inf
    squeezed.masked_fill_(infinite, 0)
    del infinite
    del magnitude  # after the other, as C++ does
    shifted = (given - largest).exp_()
    result = torch.sum(shifted, list(dim), keepdim, out=out)
    del shifted
    return result.log_().add_(squeezed)


_compute_logsumexp = generic_kernel(_aten.logsumexp.default, values.device)
_write_logsumexp = generic_kernel(_aten.logsumexp.out, values.device)

REDUCTION_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::sum": _reduction(_aten.sum.default, _all_dims, _sum_bytes, converts=True),
    "aten::sum.dim_IntList": _reduction(_aten.sum.dim_IntList, _dims_at(1), _sum_bytes, converts=True),
    "aten::sum.IntList_out": _reduction(_aten.sum.IntList_out, _dims_at(1), _sum_bytes, converts=True),
    "aten::nansum": _reduction(_aten.nansum.default, _dims_at(1), _sum_bytes, converts=True),
    "aten::mean": _reduction(_aten.mean.default, _all_dims, _sum_bytes, converts=True),
    "aten::mean.dim": _reduction(_aten.mean.dim, _dims_at(1), _sum_bytes, converts=True),
    "aten::mean.out": _reduction(_aten.mean.out, _dims_at(1), _sum_bytes, converts=True),
    "aten::prod": _reduction(_aten.prod.default, _all_dims, _sum_bytes, converts=True),
    "aten::prod.dim_int": _reduction(_aten.prod.dim_int, _dims_at(1), _sum_bytes, converts=True),
    "aten::linalg_vector_norm": _reduction(_aten.linalg_vector_norm.default, _dims_at(2), _sum_bytes, converts=True),
    "aten::norm.ScalarOpt_dim": _reduction(_aten.norm.ScalarOpt_dim, _dims_at(2), _sum_bytes),
    "aten::norm.Scalar": _reduction(_aten.norm.Scalar, _all_dims, _sum_bytes),
    "aten::amax": _reduction(_aten.amax.default, _dims_at(1), _own_bytes),
    "aten::amin": _reduction(_aten.amin.default, _dims_at(1), _own_bytes),
    "aten::max": _reduction(_aten.max.default, _all_dims, _own_bytes, copies=True),
    "aten::min": _reduction(_aten.min.default, _all_dims, _own_bytes, copies=True),
    "aten::max.dim": _reduction(_aten.max.dim, _dims_at(1), _indexed_bytes),
    "aten::min.dim": _reduction(_aten.min.dim, _dims_at(1), _indexed_bytes),
    "aten::argmax": _reduction(_aten.argmax.default, _dims_at(1), _indexed_bytes),
    "aten::argmin": _reduction(_aten.argmin.default, _dims_at(1), _indexed_bytes),
    "aten::aminmax": _reduction(_aten.aminmax.default, _dims_at(1), _pair_bytes, copies=True),
    "aten::any": _question(_aten.any.default, _all_dims),
    "aten::any.dim": _question(_aten.any.dim, _dims_at(1)),
    "aten::any.dims": _question(_aten.any.dims, _dims_at(1)),
    "aten::all": _question(_aten.all.default, _all_dims),
    "aten::all.dim": _question(_aten.all.dim, _dims_at(1)),
    "aten::all.dims": _question(_aten.all.dims, _dims_at(1)),
    "aten::count_nonzero.dim_IntList": _count_nonzero,
    "aten::logsumexp": _logsumexp,
    "aten::logsumexp.out": _logsumexp,
    **{
        f"aten::{name}.correction": _reduction(each.correction, _dims_at(1), _moment_bytes)
        for name, each in _MOMENTS.items()
    },
}
