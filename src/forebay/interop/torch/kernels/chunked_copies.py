"""Copies of many tensors into one, and of one into many, on emulated devices: the tables of CUDA's kernels.

FSDP2 joins gradients by `_chunk_cat` and separates parameters by `split_with_sizes_copy`. Their kernels read where each
block of threads begins from a table, which is copied to the device. From PyTorch 2.15 on, `chunk_cat_mixed_dtype`
chooses between them: tensors of one type are left to `_chunk_cat`, bfloat16 and float32 are joined by one table, and
others are cast before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.graph_capture import capturable
from forebay.interop.torch.devices.other_cards import card_bytes
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.known_values import with_known_values
from forebay.interop.torch.kernels.schemas import written_arguments
from forebay.interop.torch.kernels.scratch_memory import Scratch, nbytes_of
from forebay.interop.torch.kernels.stream_waits import waits_for_stream

__all__ = ["CHUNK_KERNELS"]

_aten = torch.ops.aten
_BLOCK = 128 * 16  # bytes that a block of threads copies at once
_ENTRY = 8
_compute_split = generic_kernel(_aten.split_with_sizes_copy.out, values.device)


def _chunk_cat(operator: Any) -> Callable[..., Any]:
    """Return the kernel of a concatenation of chunks."""
    compute = generic_kernel(operator, values.device)

    def kernel(tensors: Sequence[torch.Tensor], dim: int, num_chunks: int, **keywords: Any) -> torch.Tensor:
        if all(each.is_contiguous() for each in tensors):
            result: torch.Tensor = compute(tensors, dim, num_chunks, **keywords)
            _take_table(tensors, dim, num_chunks, result)
            return result
        with Scratch(tensors[0].device) as scratch:
            for each in tensors:
                scratch.contiguous(each)
            return compute(tensors, dim, num_chunks, **keywords)

    return kernel


def _take_table(tensors: Sequence[torch.Tensor], dim: int, num_chunks: int, result: torch.Tensor) -> None:
    """Allocate the table of a concatenation for a moment."""
    blocks = 0
    for each in tensors:
        elements = -(-each.shape[dim] // num_chunks) * each.shape[dim + 1 :].numel()
        blocks += -(-elements * result.itemsize // _BLOCK)
    with Scratch(result.device) as scratch:
        scratch.take((6 * len(tensors) + 2 + blocks) * _ENTRY)


def _chunk_cat_of_types(operator: Any) -> Callable[..., Any]:
    """Return the kernel of a concatenation of chunks that may differ in type."""
    compute = with_known_values(operator, generic_kernel(operator, values.device, is_foreign=True))
    compute = capturable(compute, written_arguments(operator), waits_for_stream(operator))

    def kernel(tensors: Sequence[torch.Tensor], dim: int, num_chunks: int, *, out: torch.Tensor) -> None:
        if len({each.dtype for each in tensors}) == 1:
            _aten._chunk_cat.out(tensors, dim, num_chunks, out=out)
        elif dim == 0 and out.is_contiguous() and all(_is_fused(each, out) for each in tensors):
            compute(tensors, dim, num_chunks, out=out)
            _take_table(tensors, dim, num_chunks, out)
        else:
            _aten._chunk_cat.out([each.to(out.dtype) for each in tensors], dim, num_chunks, out=out)

    return kernel


def _is_fused(given: torch.Tensor, out: torch.Tensor) -> bool:
    is_cast = given.dtype == torch.bfloat16 and out.dtype == torch.float32
    is_whole = given.dim() > 0 and given.numel() > 0 and given.is_contiguous()
    return is_whole and given.device == out.device and bool(is_cast or given.dtype == out.dtype)


def _split(given: torch.Tensor, split_sizes: Sequence[int], dim: int = 0, *, out: Sequence[torch.Tensor]) -> None:
    """Write the parts of a tensor."""
    _compute_split(given, split_sizes, dim, out=out)
    elements = given.shape[dim % given.dim() + 1 :].numel()
    sizes = [size * elements * given.itemsize for size in split_sizes]

    def table(processors: int, threads: int) -> int:
        blocks = sum(-(-size // _BLOCK) for size in sizes)
        rounds = max(1, -(-blocks // (processors * (threads // 64))))  # what the card runs at once
        blocks = sum(-(-size // (_BLOCK * rounds)) for size in sizes)
        return int(4 * len(sizes) + 1 + blocks) * _ENTRY

    if nbytes_of(given) and all(each.is_contiguous() for each in out):
        with Scratch(given.device) as scratch:
            names = ("multi_processor_count", "max_threads_per_multi_processor")
            scratch.take(card_bytes(scratch.opened, names, table, ("split", tuple(sizes))))


CHUNK_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_chunk_cat": _chunk_cat(_aten._chunk_cat.default),
    "aten::_chunk_cat.out": _chunk_cat(_aten._chunk_cat.out),
    "aten::split_with_sizes_copy.out": _split,
}
_mixed = getattr(torch.ops.fsdp, "chunk_cat_mixed_dtype", None)
if _mixed is not None and len(_mixed.default._schema.arguments) == 4:  # others are left to their kernel for all devices
    CHUNK_KERNELS["fsdp::chunk_cat_mixed_dtype"] = _chunk_cat_of_types(_mixed.default)
