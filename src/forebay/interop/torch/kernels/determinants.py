"""Determinants on emulated devices: what PyTorch's CUDA build allocates to compute them from a factorization.

The signs are those of the permutations of rows, which are counted, and of the diagonals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.linear_systems import INFO, count_of, take_lu
from forebay.interop.torch.kernels.reductions import take_reduction
from forebay.interop.torch.kernels.scratch_memory import Scratch

__all__ = ["DETERMINANT_KERNELS"]

_aten = torch.ops.aten
_compute_det = generic_kernel(_aten._linalg_det.default, values.device)
_compute_slogdet = generic_kernel(_aten._linalg_slogdet.default, values.device)


def _det(given: torch.Tensor) -> Any:
    result = _compute_det(given)
    with Scratch(given.device) as scratch:
        _take_factors(scratch, given)
        _take_product(scratch, given)
        _take_signs(scratch, given)
    return result


def _slogdet(given: torch.Tensor) -> Any:
    result = _compute_slogdet(given)
    length, count, real = given.shape[-1], count_of(given), given.dtype.to_real()
    with Scratch(given.device) as scratch:
        _take_factors(scratch, given)
        with Scratch(scratch.opened) as signs:
            _take_signs(signs, given)
            signs.take(count * length * given.itemsize)
            _take_product(signs, given)
        scratch.take(count * length * real.itemsize)
        if given.is_complex():
            scratch.free(scratch.take(count * length * given.itemsize))
        diagonals = torch.empty(*given.shape[:-1], dtype=real, device="meta")
        take_reduction(scratch.opened, diagonals, [-1], real)
    return result


def _take_factors(scratch: Scratch, given: torch.Tensor) -> None:
    """Take the errors of the factorizations."""
    scratch.take(count_of(given) * INFO)
    take_lu(scratch, given)


def _take_product(scratch: Scratch, given: torch.Tensor) -> None:
    """Take the products of diagonals."""
    scratch.take(count_of(given) * given.itemsize)
    diagonals = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device="meta").diagonal(0, -2, -1)
    take_reduction(scratch.opened, diagonals, [-1], given.dtype)


def _take_signs(scratch: Scratch, given: torch.Tensor) -> None:
    """Take the pivots without exchanges, the mask of exchanges, and their count, of which integers are added."""
    length, count = given.shape[-1], count_of(given)
    scratch.take(length * 4)
    scratch.take(count * length)
    scratch.take(count * 8)
    with Scratch(scratch.opened) as converted:
        converted.take(count * length * 8)
        numbers = torch.empty(*given.shape[:-1], dtype=torch.int64, device="meta")
        take_reduction(scratch.opened, numbers, [-1], torch.int64)


DETERMINANT_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_linalg_det": _det,
    "aten::_linalg_slogdet": _slogdet,
}
