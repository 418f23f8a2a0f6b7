"""Making tensors of random numbers, in PyTorch's spelling: those that PyTorch's kernels draw on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from forebay.device_spec import Device
from forebay.runtime.random.generator import Generator
from forebay.runtime.random.launch_geometry import slowest_first
from forebay.runtime.tensors.creation import empty
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["bernoulli", "exponential", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like"]

_Place = Device | str | int | None


def rand(
    *size: int | Sequence[int],
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: _Place = None,
) -> Tensor:
    """A tensor of numbers from 0 on, below 1. (`torch.rand`)

    >>> import forebay
    >>> _ = forebay.manual_seed(0)
    >>> [round(number, 4) for number in forebay.rand(3, device="host:0").tolist()]
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


def rand_like(
    input: Tensor,  # noqa: A002 -- PyTorch's name
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: _Place = None,
) -> Tensor:
    """As `rand`, with the tensor's shape, dtype, device and order of its dimensions in memory. (`torch.rand_like`)

    The order matters: the same seed gives transposed tensors the same numbers, transposed.
    """
    return _empty_like("rand_like", input, dtype, device).uniform_(generator=generator)


def randn_like(
    input: Tensor,  # noqa: A002 -- PyTorch's name
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: _Place = None,
) -> Tensor:
    """As `randn`, with what `rand_like` takes from the tensor. (`torch.randn_like`)"""
    return _empty_like("randn_like", input, dtype, device).normal_(generator=generator)


def randint_like(
    input: Tensor,  # noqa: A002 -- PyTorch's name
    low: int | None = None,
    high: int | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: _Place = None,
) -> Tensor:
    """As `randint`, with what `rand_like` takes from the tensor: also its dtype. (`torch.randint_like`)"""
    if high is None:
        low, high = 0, low
    if high is None:
        raise TypeError("randint_like() missing 1 required positional argument: 'high'")
    return _empty_like("randint_like", input, dtype, device).random_(low or 0, high, generator=generator)


def _empty_like(function: str, like: Tensor, dtype: DTypeLike | None, device: _Place) -> Tensor:
    """A tensor without gaps whose dimensions lie in memory in the other's order, and that is empty."""
    if not isinstance(like, Tensor):
        raise TypeError(f"{function}(): argument 'input' (position 1) must be Tensor, not {type(like).__name__}")
    order = slowest_first(like.shape, like.byte_strides)
    made = empty(
        tuple(like.shape[dim] for dim in order),
        dtype=like.dtype if dtype is None else dtype,
        device=like.device if device is None else device,
    )
    return made.permute(*np.argsort(order).tolist()) if order != sorted(order) else made
