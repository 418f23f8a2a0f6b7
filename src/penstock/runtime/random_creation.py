"""Making tensors of random numbers, in PyTorch's spelling: those that PyTorch's kernels draw on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from penstock.device import Device
from penstock.runtime.creation import empty
from penstock.runtime.generator import Generator

if TYPE_CHECKING:
    from penstock.runtime.tensor import Tensor

__all__ = ["bernoulli", "exponential", "rand", "randint", "randn"]

_Place = Device | str | int | None


def rand(
    *size: int | Sequence[int],
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: _Place = None,
) -> Tensor:
    """A tensor of numbers from 0 on, below 1. (`torch.rand`)

    >>> import penstock
    >>> _ = penstock.manual_seed(0)
    >>> [round(number, 4) for number in penstock.rand(3, device="host:0").tolist()]
    [0.399, 0.5167, 0.0249]
    """
    return empty(*size, dtype=dtype, device=device).uniform_(generator=generator)


def randn(
    *size: int | Sequence[int],
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: _Place = None,
) -> Tensor:
    """A tensor of numbers of the standard normal distribution. (`torch.randn`)"""
    return empty(*size, dtype=dtype, device=device).normal_(generator=generator)


def exponential(
    *size: int | Sequence[int],
    lambd: float = 1.0,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: _Place = None,
) -> Tensor:
    """A tensor of numbers of the exponential distribution with rate `lambd`, none of them 0."""
    return empty(*size, dtype=dtype, device=device).exponential_(lambd, generator=generator)


def randint(
    low: int = 0,
    high: int | Sequence[int] | None = None,
    size: Sequence[int] | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: _Place = None,
) -> Tensor:
    """A tensor of integers from `low` on, below `high`; `randint(high, size)` begins at 0. int64. (`torch.randint`)"""
    if size is None and isinstance(high, Sequence):
        size, high = high, None
    if not isinstance(size, Sequence) or isinstance(size, str):
        raise TypeError(f"randint(): argument 'size' must be tuple of ints, not {type(size).__name__}")
    if isinstance(high, Sequence):
        raise TypeError(f"randint(): argument 'high' must be int, not {type(high).__name__}")
    if high is None:
        low, high = 0, low
    made = empty(tuple(size), dtype=np.int64 if dtype is None else dtype, device=device)
    return made.random_(low, high, generator=generator)


def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:  # noqa: A002 -- PyTorch's name
    """Ones with the probabilities that the tensor holds, else zeros, in a new tensor like it. (`torch.bernoulli`)

    `p` stands for all of them. What is no probability fails when the work is waited for.
    """
    made = empty(input.shape, dtype=input.dtype, device=input.device)
    return made.bernoulli_(input if p is None else p, generator=generator)
