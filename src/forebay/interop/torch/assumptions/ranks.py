"""Integers that differ from their neighbours in memory, such as the indices that `topk` returns.

# Note [Ranks]
A program that reads the indices of the best tokens, a permutation or the values of `unique` relies on them being
different: a beam search whose candidates are all the same has fewer than it needs, and a loop over the classes of a
batch sees one of them. They read as the smallest that the operator can return, the next one, and so on, by their place
in the row of the memory; the opposite choice counts down from the largest. A tensor that consists of elements of
another has lost the places, and reads as the smallest integer. Indices of another dimension than the last have none,
either: their rows are not next to each other in memory.
Test: tests/interop/torch/assumptions/test_ranks.py::test_indices_of_one_row_differ
"""

from __future__ import annotations

import torch

from forebay.interop.torch.assumptions.elements import Elements, is_integral

__all__ = ["ranked", "ranks_of"]


def ranked(found: Elements, row: int | None = None) -> Elements:
    """Return what holds for integers that differ in each row of some length, by default of that of their range."""
    if found.value is not None or found.low is None or found.high is None:
        return found
    span = found.high - found.low + 1
    return found._replace(row=span if row is None else max(1, min(row, span)))


def ranks_of(tensor: torch.Tensor, found: Elements, is_opposite: bool) -> torch.Tensor | None:
    """Return what a tensor of different integers reads as, on the CPU; None for another tensor."""
    if found.row is None or found.value is not None or not is_integral(tensor.dtype):
        return None
    places = torch.full((), tensor.storage_offset())
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        others = [1] * (tensor.dim() - 1 - dim)
        places = places + (torch.arange(size) * stride).reshape(size, *others)
    ranks = places.reshape(tensor.shape) % found.row
    low, high = found.low or 0, found.high or 0
    return (high - ranks if is_opposite else low + ranks).to(tensor.dtype)
