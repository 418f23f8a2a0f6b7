"""Layouts of Fourier transforms: which inputs cuFFT reads where they are, and the strides of its results.

cuFFT transforms the last dimensions of a batch. The other ones are made one dimension, in the order of their strides,
and those of the result have the same order, which is why the strides of a result depend on those of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

__all__ = ["clones_input", "laid_out", "layout_of", "order_of"]

_HALVES = (torch.float16, torch.complex32)


def order_of(source: torch.Tensor, dims: Sequence[int]) -> list[int]:
    """Return the dimensions in the order in which cuFFT sees them: those of the batch, then the transformed ones."""
    order = [*range(source.dim())]
    end = _partition(order, lambda at: at not in dims)
    return [*sorted(order[:end], key=source.stride, reverse=True), *dims]


def _partition(order: list[int], is_first: Callable[[int], bool]) -> int:
    """Move those that are first to the begin by exchanging pairs, and return how many they are.

    PyTorch's order of dimensions with equal strides, as those of expanded numbers, results from the exchanges.
    """
    first, last = 0, len(order)
    while True:
        while first < last and is_first(order[first]):
            first += 1
        while first < last and not is_first(order[last - 1]):
            last -= 1
        if first >= last:
            return first
        order[first], order[last - 1] = order[last - 1], order[first]


def clones_input(inputs: torch.Tensor, sizes: Sequence[int]) -> bool:
    """Return True if cuFFT cannot read a batch where it is: its strides are no multiples, or zero.

    `sizes` are those of the signals, which real inputs and results have, with the batch first.
    """
    strides = inputs.stride()
    if inputs.dtype in _HALVES and strides[-1] != 1:
        return True
    last = strides[-1]
    if last <= 0 or (sizes[0] != 1 and strides[0] == 0):
        return True
    for at in range(len(strides) - 2, 0, -1):
        if sizes[at] != 1:
            if strides[at] <= 0 or strides[at] % last:
                return True
            last = strides[at]
    return False


def layout_of(order: Sequence[int], sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor without memory with the sizes and the strides of the result of a step."""
    strides, stride = [0] * len(order), 1
    for at in reversed(order):
        strides[at] = stride
        stride *= sizes[at]
    return torch.empty_strided([*sizes], strides, dtype=dtype, device="meta")


def laid_out(found: torch.Tensor, layout: torch.Tensor) -> torch.Tensor:
    """Return values with the strides of a layout."""
    if found.stride() == layout.stride() and found.untyped_storage().nbytes() == found.numel() * found.itemsize:
        return found
    made = torch.empty_strided(layout.shape, layout.stride(), dtype=found.dtype, device=found.device)
    return made.copy_(found)
