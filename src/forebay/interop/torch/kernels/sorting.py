"""Sorts on emulated devices, and operators that sort: the buffers of PyTorch's kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.scratch_memory import Scratch, is_dense, nbytes_of
from forebay.interop.torch.kernels.temporary_storage import bits_of, segment_sort_bytes, sort_bytes
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["SORTING_KERNELS", "index_sort_bytes", "take_index_sort"]

_aten = torch.ops.aten
_SHORT = 4096  # elements of a row that a block sorts
_LONG, _MANY = 1_000_000, 128  # elements of a row that is sorted by itself, rows that are sorted as segments
_PAIR = 8  # bytes of an index with its row


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
                    _take_long_rows(scratch, given, dim, length)
        return result

    return kernel


def _take_long_rows(scratch: Scratch, given: torch.Tensor, dim: int, length: int) -> None:
    """Take the buffers of the sort of rows that are too long for a block."""
    count, key, opened = given.numel(), given.itemsize, scratch.opened
    if not is_dense(given) or given.stride(dim) != 1:  # results are sorted in copies, too
        scratch.take(nbytes_of(given))
        scratch.take(nbytes_of(given))
        scratch.take(count * 8)
    rows = count // length
    bits = 1 if given.dtype == torch.bool else None
    if rows == 1 or length >= _LONG:
        scratch.take(length * 8)
        for _ in range(rows):
            scratch.free(scratch.take(sort_bytes(opened, length, key, 8, bits)))
    elif rows < _MANY:  # by value, then by row
        for _ in range(2):
            scratch.take(count * _PAIR)
        with Scratch(opened) as sorted_values:
            sorted_values.take(nbytes_of(given))
            sorted_values.take(sort_bytes(opened, count, key, 8, bits))
        scratch.take(sort_bytes(opened, count, _PAIR, 0, bits_of(rows)))
    else:
        scratch.take(count * 8)
        scratch.take(segment_sort_bytes(count, key, 8))


def take_index_sort(scratch: Scratch, count: int, key: int, largest: int) -> None:
    """Take and free the buffer of a sort of indices, with their places, of which none is larger than `largest`."""
    scratch.free(scratch.take(sort_bytes(scratch.opened, count, key, 8, bits_of(largest))))


def index_sort_bytes(opened: OpenDevice, count: int, key: int) -> int:
    """Return the bytes of the largest buffer of a sort of one row of indices by sort()."""
    return count * 8 if count <= _SHORT else sort_bytes(opened, count, key, 8)


def _topk(given: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    result = _compute_topk(given, *args, **kwargs)
    with Scratch(given.device) as scratch:
        scratch.contiguous(given)
    return result


def _median(given: torch.Tensor) -> torch.Tensor:
    """Return the median as CUDA's kernel does, which sorts all elements; NaN, which is last, is the result if any."""
    if not given.numel():
        return torch.full((), math.nan, dtype=given.dtype, device=given.device)
    ordered = given.flatten().sort().values
    last = ordered[-1]
    return torch.where(last.isnan(), last, ordered[(given.numel() - 1) // 2])


def _nanmedian(given: torch.Tensor) -> torch.Tensor:
    if not given.is_floating_point() or not given.numel():
        return _median(given)
    ordered = given.flatten().sort().values
    unknown = ordered.isnan()
    total = unknown.sum()
    left = given.numel() - 1 - total
    half = left / 2
    place = half.to(torch.int64)
    del half  # as C++ does: the newest first
    del left
    del total
    del unknown
    found: torch.Tensor = _aten.index.Tensor(ordered, [place])
    del place
    return found


def _mode(given: torch.Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    result = _compute_mode(given, dim, keepdim)
    if given.dim() and given.numel():
        with Scratch(given.device) as scratch:
            scratch.contiguous(given.transpose(dim, -1))
    return result


def _isin(
    elements: torch.Tensor, tested: torch.Tensor, *, assume_unique: bool = False, invert: bool = False
) -> torch.Tensor:  # fmt: skip
    """Return which elements are among others: compared with each of few, or by a sort of all."""
    result = _compute_isin(elements, tested, assume_unique=assume_unique, invert=invert)
    if not elements.numel() or not tested.numel():
        return result
    with Scratch(elements.device) as scratch:
        if tested.numel() < 10 * elements.numel() ** 0.145:
            scratch.take(elements.numel() * tested.numel())
            scratch.take(elements.numel())
        elif assume_unique:  # unique elements depend on values
            both = torch.cat([elements.flatten(), tested.flatten()])
            ordered = both.sort(stable=True)
            scratch.take(both.numel())
            scratch.free(scratch.take(both.numel() - 1))
            scratch.take(both.numel())
            scratch.close()
            del ordered
    return result


def _randperm(n: int, *, generator: Any = None, out: torch.Tensor) -> torch.Tensor:
    """Write a permutation. The GPU sorts the numbers by random keys, which have so many bits that few are equal."""
    result: torch.Tensor = _compute_randperm(n, generator=generator, out=out)
    if n > 1:
        bits = min(64, math.ceil(math.log2(n - (6 * n * n + 1) / (12 * math.log(0.9)))))
        key = 4 if bits <= 32 else 8
        with Scratch(out.device) as scratch:
            scratch.free(scratch.take(out.itemsize))
            scratch.take(n * out.itemsize)
            for _ in range(2):
                scratch.take(n * key)
            scratch.take(sort_bytes(scratch.opened, n, key, out.itemsize, bits))
    return result


_compute_topk = generic_kernel(_aten.topk.default, values.device)
_compute_mode = generic_kernel(_aten.mode.default, values.device)
_compute_isin = generic_kernel(_aten.isin.Tensor_Tensor, values.device)
_compute_randperm = generic_kernel(_aten.randperm.generator_out, values.device)
SORTING_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::sort": _sort(_aten.sort.default, 1),
    "aten::sort.stable": _sort(_aten.sort.stable, 1),
    "aten::topk": _topk,
    "aten::median": _median,
    "aten::nanmedian": _nanmedian,
    "aten::mode": _mode,
    "aten::isin.Tensor_Tensor": _isin,
    "aten::randperm.generator_out": _randperm,
}
