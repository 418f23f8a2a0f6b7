"""Copies of many tensors into one, and of one into many, on emulated devices: the tables of CUDA's kernels.

FSDP2 joins gradients by `_chunk_cat` and separates parameters by `split_with_sizes_copy`. Their kernels read where each
block of threads begins from a table, which is copied to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.other_cards import card_bytes
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.scratch_memory import Scratch, nbytes_of

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
            blocks = 0
            for each in tensors:
                elements = -(-each.shape[dim] // num_chunks) * each.shape[dim + 1 :].numel()
                blocks += -(-elements * result.itemsize // _BLOCK)
            with Scratch(result.device) as scratch:
                scratch.take((6 * len(tensors) + 2 + blocks) * _ENTRY)
            return result
        with Scratch(tensors[0].device) as scratch:
            for each in tensors:
                scratch.contiguous(each)
            return compute(tensors, dim, num_chunks, **keywords)

    return kernel


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
