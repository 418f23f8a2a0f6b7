"""Fourier transforms with real inputs or results on emulated devices, with the copies that cuFFT needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.scratch_memory import Scratch, nbytes_of

__all__ = ["TRANSFORM_KERNELS"]

_aten = torch.ops.aten
_MOST_DIMENSIONS = 3
_compute_real = generic_kernel(_aten._fft_c2r.default, values.device)
_compute_complex = generic_kernel(_aten._fft_r2c.default, values.device)
_compute_both = generic_kernel(_aten._fft_c2c.default, values.device)


def _to_real(given: torch.Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> torch.Tensor:
    """Return a real result. cuFFT overwrites its input, so it is copied, or the other dimensions are first."""
    with Scratch(given.device) as scratch:
        if len(dim) > _MOST_DIMENSIONS:  # all but the last before
            scratch.take(nbytes_of(given))
        result: torch.Tensor = _compute_real(given, dim, normalization, last_dim_size)
        scratch.take(nbytes_of(given))
        if not _is_one_batch(given, dim):
            scratch.take(nbytes_of(given))
    return result


def _from_real(given: torch.Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> torch.Tensor:
    result: torch.Tensor = _compute_complex(given, dim, normalization, onesided)
    with Scratch(given.device) as scratch:
        if 0 in given.stride() or not _is_one_batch(given, dim[-1:]):
            scratch.take(nbytes_of(given))
        if tuple(dim[:2]) == (0, 1):  # the other dimensions afterwards, in a second buffer
            scratch.take(nbytes_of(result))
    return result


def _of_complex(given: torch.Tensor, dim: Sequence[int], normalization: int, forward: bool) -> torch.Tensor:
    result: torch.Tensor = _compute_both(given, dim, normalization, forward)
    if dim and (0 in given.stride() or not _is_one_batch(given, dim)):
        with Scratch(given.device) as scratch:
            scratch.take(nbytes_of(given))
    return result


def _is_one_batch(given: torch.Tensor, dim: Sequence[int]) -> bool:
    """Return True if the dimensions that are not transformed are one in memory, as cuFFT needs."""
    others = set(range(given.dim())) - {each % given.dim() for each in dim}
    layout = sorted(((given.stride(at), given.shape[at]) for at in others if given.shape[at] != 1), reverse=True)
    return all(one[0] == other[0] * other[1] for one, other in pairwise(layout))


TRANSFORM_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_fft_c2r": _to_real,
    "aten::_fft_c2c": _of_complex,
    "aten::_fft_r2c": _from_real,
}
