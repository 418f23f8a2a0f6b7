"""Products of groups of matrices, as of experts of a model, and histograms, which such models count with integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import adopt, open_torch_device
from forebay.interop.torch.devices.other_cards import card_bytes
from forebay.interop.torch.kernels.scratch_memory import (
    Scratch,
    by_capability,
    check_devices,
    give,
    type_name,
    values_of,
)
from forebay.interop.torch.kernels.wide_types import over_values
from forebay.interop.torch.kernels.workspaces import blas_workspace

__all__ = ["GROUPED_KERNELS"]

_aten = torch.ops.aten
_compute = over_values(_aten._grouped_mm.default)
_WORKSPACE_OF_PROCESSOR = 512  # bytes that CUTLASS takes for each multiprocessor


def _grouped_product(
    one: torch.Tensor, other: torch.Tensor, offs: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """Multiply groups: on GPUs of capability 9 and 10, bfloat16 with one kernel of CUTLASS, else each with cuBLAS.

    The rows of the result begin at multiples of 16 bytes.
    """
    check_devices(one, other, offs, bias)
    if one.shape[-1] != other.shape[-2]:
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    if (one.dim() == 2 or other.dim() == 2) != (offs is not None):
        raise RuntimeError("Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d")
    if out_dtype not in (None, one.dtype):
        raise RuntimeError("Grouped gemm output dtype must match `mat_a` dtype")
    opened = open_torch_device(one.device)
    is_fused = one.dtype == other.dtype == torch.bfloat16 and by_capability(opened, _has_fused_kernel)
    groups = one.shape[0] if offs is None else offs.shape[0]
    shape = (*([groups] if one.dim() == other.dim() else []), one.shape[-2], other.shape[-1])
    aligned = 16 // one.itemsize
    width = -(-shape[-1] // aligned) * aligned
    strides = (shape[-2] * width, width, 1)[-len(shape) :]
    result = torch.empty_strided(shape, strides, dtype=one.dtype, device=values.device())
    if values.is_computed():
        result.copy_(_compute(values_of(one), values_of(other), values_of(offs), values_of(bias), out_dtype))
    made = adopt(result, opened)
    if is_fused:
        with Scratch(opened) as scratch:
            scratch.take(3 * -(-8 * groups // 16) * 16 + 36 * groups)
            names = ("multi_processor_count",)
            scratch.take(card_bytes(opened, names, lambda count: count * _WORKSPACE_OF_PROCESSOR, "grouped"))
    else:
        for _ in range(1 if offs is None else groups):
            with Scratch(opened) as scratch:
                blas_workspace(scratch)
    return made


def _has_fused_kernel(capability: tuple[int, int]) -> bool:
    return capability[0] in (9, 10)


def _histogram(
    given: torch.Tensor,
    bins: int = 100,
    low: complex = 0,
    high: complex = 0,
) -> torch.Tensor:
    """Count elements in bins. The CPU has no histograms of integers."""
    if given.dtype in (torch.float16, torch.bfloat16):
        raise RuntimeError(f"{type_name(given.dtype)}Tensor is not supported")
    if given.dtype == torch.bool:
        raise NotImplementedError("\"histc\" not implemented for 'Bool'")  # PyTorch's error on a GPU, as below
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    opened = open_torch_device(given.device)
    if not values.is_computed():
        result = adopt(torch.empty(bins, dtype=given.dtype, device="meta"), opened)
    elif given.is_floating_point():
        result = give(_aten.histc(values_of(given), bins, low, high), opened)
    else:
        result = give(_count(values_of(given), bins, int(low.real), int(high.real)), opened)
    if low == high:
        with Scratch(opened) as scratch:  # the least and the greatest element
            numbers = [scratch.take(given.itemsize) for _ in range(2)]
            for each in numbers:
                scratch.free(each)
    return result


def _count(given: torch.Tensor, bins: int, low: int, high: int) -> torch.Tensor:
    """Return how many integers are in each of the bins, as CUDA's kernel, with integers."""
    wide = given.flatten().long()
    if low == high and wide.numel():
        low, high = (int(each) for each in wide.aminmax())
    if low == high:
        low, high = low - 1, high + 1
    if low > high:
        raise RuntimeError("max must be larger than min")
    inside = wide[(wide >= low) & (wide <= high)]
    places = ((inside - low) * bins // (high - low)).clamp(max=bins - 1)
    return torch.bincount(places, minlength=bins).to(given.dtype)


GROUPED_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_grouped_mm": _grouped_product,
    "aten::histc": _histogram,
}
