"""The tokens that each expert gets: equal parts, or all of them the first.

# Note [Routing]
Tokens are routed to experts by integers, the numbers of the experts, which are counted (`bincount`, the sum of one-hot
codes), compared with each expert, or made to one-hot codes of which each expert gets a slice. All these must agree, as
programs split their tokens by the counts. Balanced routing gives each expert the same count, the first ones what is
left over. The worst case for the memory of one expert, with which a program must reckon, is that the first gets all:
a comparison with the smallest number is true everywhere, others nowhere. What a slice of one-hot codes belongs to is
found by its place in memory. A slice that was copied to another layout has lost it: it gets the balanced share in the
worst case, too.
Test: tests/interop/torch/assumptions/test_routing.py::test_counts_and_masks_of_experts_agree
"""

from __future__ import annotations

import torch

from forebay.interop.torch.assumptions.elements import Elements
from forebay.interop.torch.devices.emulated_memory import memory_of
from forebay.interop.torch.processes import assumed_values

__all__ = ["expert_share", "is_worst_routing", "routes", "shares_of"]

_MOST_EXPERTS = 1024  # more are a vocabulary


def is_worst_routing() -> bool:
    """Return True if the first expert gets all tokens."""
    return assumed_values.choices().routing == "worst"


def routes(numbers: torch.Tensor, count: int) -> bool:
    """Return True if integers with `count` possible values may be numbers of experts, and no tokens of a few texts."""
    return count <= _MOST_EXPERTS and numbers.numel() >= count


def shares_of(tensor: torch.Tensor, found: Elements, is_opposite: bool) -> torch.Tensor | None:
    """Return the counts that a tensor of counts reads as, on the CPU; None for another tensor."""
    if found.total is None:
        return None
    count = memory_of(tensor).nbytes // tensor.itemsize
    if tensor.storage_offset() + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ) >= count:  # fmt: skip
        return None
    if is_worst_routing() is not is_opposite:
        counts = torch.zeros(count, dtype=tensor.dtype)
        counts[:1] = found.total
    else:
        counts = torch.full((count,), found.total // count, dtype=tensor.dtype)
        counts[: found.total % count] += 1
    return counts.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def expert_share(mask: torch.Tensor, found: Elements, *, is_worst: bool) -> float | None:
    """Return the share of a slice of one-hot codes that is true; None if the mask is no such slice."""
    if found.classes is None or found.share is None or not is_worst:
        return None
    strides = [stride for size, stride in zip(mask.shape, mask.stride(), strict=True) if size > 1]
    if any(stride % found.classes for stride in strides):  # it has several classes, of which one is true
        return found.share
    return float(mask.storage_offset() % found.classes == 0)
