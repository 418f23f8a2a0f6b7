"""Bags of embeddings, bounded embeddings and scattered means on emulated devices, with the buffers of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import adopt, open_torch_device
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.scratch_memory import Scratch, check_devices, nbytes_of, values_of
from forebay.interop.torch.kernels.sorting import index_sort_bytes
from forebay.interop.torch.kernels.temporary_storage import selection_bytes

__all__ = ["EMBEDDING_KERNELS"]

_aten = torch.ops.aten
_MAXIMUM = 2  # the mode of a bag


def _bags(operator: Any) -> Callable[..., Any]:
    """Return the kernel of sums, means or maxima of bags, which notes the bag of each index and the sizes of bags."""

    def kernel(
        weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, scale_grad_by_freq: bool = False,
        mode: int = 0, sparse: bool = False, per_sample_weights: torch.Tensor | None = None,
        include_last_offset: bool = False, padding_idx: int = -1,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        check_devices(weight, indices, offsets, per_sample_weights)
        opened, starts = open_torch_device(weight.device), values_of(offsets)
        output, _, _, maxima = operator(
            values_of(weight), values_of(indices), starts, scale_grad_by_freq, mode, sparse,
            values_of(per_sample_weights), include_last_offset, padding_idx,
        )  # fmt: skip
        count, bags = indices.numel(), output.shape[0]
        places = torch.arange(count, dtype=starts.dtype, device=starts.device)
        first = starts[:bags].contiguous()
        bag_of_each = (torch.searchsorted(first, places, right=True) - 1).to(indices.dtype)
        ends = torch.cat([first[1:], torch.full((1,), count, dtype=first.dtype, device=first.device)])
        sizes = torch.zeros(starts.shape, dtype=indices.dtype, device=first.device)
        sizes[:bags] = (ends - first)[:bags]
        made = adopt(sizes, opened), adopt(bag_of_each, opened), adopt(output.contiguous(), opened)
        if mode != _MAXIMUM:
            maxima = torch.empty(0, dtype=indices.dtype, device=first.device)
        return made[2], made[1], made[0], adopt(maxima, opened)

    return kernel


def _bound_norms(weight: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float) -> torch.Tensor:
    """Scale the rows whose norm is too large. The GPU finds the unique indices by a sort."""
    result: torch.Tensor = _compute_bounded(weight, indices, max_norm, norm_type)
    count = indices.numel()
    if count:
        with Scratch(weight.device) as scratch:
            nbytes = nbytes_of(indices)
            for _ in range(2):
                scratch.take(nbytes)
            with Scratch(scratch.opened) as sorting:
                sorting.take(nbytes)
                sorting.take(index_sort_bytes(scratch.opened, count, indices.itemsize))
            with Scratch(scratch.opened) as selecting:
                scratch.take(nbytes)
                selecting.take(8)
                selecting.take(selection_bytes(count, indices.itemsize))
    return result


def _scattered_mean(operator: Any) -> Callable[..., Any]:
    """Return the kernel of a reduction of scattered elements, which counts those of a mean."""
    compute = generic_kernel(operator, values.device)

    def kernel(
        given: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, **keywords: Any
    ) -> torch.Tensor:  # fmt: skip
        result: torch.Tensor = compute(given, dim, index, source, reduce, **keywords)
        if reduce == "mean" and source.numel():
            _take_counts(given, source, keeps_ones=operator._schema.name == "aten::scatter_reduce")
        return result

    return kernel


def _take_counts(given: torch.Tensor, source: torch.Tensor, *, keeps_ones: bool) -> None:
    """Take the counts of the elements of a mean, a one for each, and the mask of those that none was added to."""
    with Scratch(given.device) as scratch:
        if keeps_ones:
            scratch.take(nbytes_of(source))
        scratch.take(nbytes_of(given))
        if not keeps_ones:
            scratch.free(scratch.take(nbytes_of(source)))
        scratch.take(given.numel())


_compute_bounded = generic_kernel(_aten.embedding_renorm_.default, values.device)
_MEANS = ("scatter_reduce.two", "scatter_reduce_.two", "scatter_reduce.two_out", "index_reduce.default",
          "index_reduce_.default", "index_reduce.out")  # fmt: skip


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(_aten, packet), overload)


EMBEDDING_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_embedding_bag": _bags(_aten._embedding_bag.default),
    "aten::_embedding_bag_forward_only": _bags(_aten._embedding_bag_forward_only.default),
    "aten::embedding_renorm_": _bound_norms,
    **{f"aten::{name}".removesuffix(".default"): _scattered_mean(_overload(name)) for name in _MEANS},
}
