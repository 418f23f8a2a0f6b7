"""Creation of tensors of random numbers, equal to those that PyTorch draws on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forebay._base.dtypes import DTypeLike
from forebay._base.layouts import layout, memory_format, preserve_format, strided
from forebay.runtime.random import fill
from forebay.runtime.random.generator import Generator
from forebay.runtime.tensors.creation import empty, empty_for
from forebay.runtime.tensors.creation_like import new_like
from forebay.runtime.tensors.options import DeviceLike, check_options
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["bernoulli", "exponential", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like"]


# Written by tools/write_names.py from tools/names/factories.toml: edit the table, not these lines.


def rand(
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    layout: layout = strided,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create a tensor of uniform random numbers in [0, 1).

    As `torch.rand` on a GPU: the CPU device draws the same numbers as an emulated GPU.

    Parameters
    ----------
    *sizes : int or sequence of int
        The shape.
    size : sequence of int, optional
        The shape, as a keyword.
    generator : Generator, optional
        The generator; that of the tensor's device by default.
    out : Tensor, optional
        A tensor to fill instead of a new one; it gets this shape.
    dtype : dtype, optional
        The element type; float32 by default.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        The device; the default device of this thread otherwise.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.

    Returns
    -------
    Tensor
        The tensor; its fill is queued on the current stream of its device.

    Examples
    --------
    >>> import forebay
    >>> _ = forebay.manual_seed(0)
    >>> forebay.rand(3)
    tensor([0.3990, 0.5167, 0.0249])
    """
    made = empty_for("rand", sizes, size, out, dtype, device, pin_memory, layout, requires_grad)
    fill.uniform(made, 0, 1, generator)
    return made


def randn(
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    layout: layout = strided,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create a tensor of random numbers of the standard normal distribution.

    As `torch.randn` on a GPU.

    Parameters
    ----------
    *sizes : int or sequence of int
        The shape.
    size : sequence of int, optional
        The shape, as a keyword.
    generator : Generator, optional
        The generator; that of the tensor's device by default.
    out : Tensor, optional
        A tensor to fill instead of a new one; it gets this shape.
    dtype : dtype, optional
        The element type; float32 by default.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        The device; the default device of this thread otherwise.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.

    Returns
    -------
    Tensor
        The tensor; its fill is queued on the current stream of its device.
    """
    made = empty_for("randn", sizes, size, out, dtype, device, pin_memory, layout, requires_grad)
    fill.normal(made, 0, 1, generator)
    return made


def exponential(
    *size: int | Sequence[int],
    lambd: float = 1.0,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
) -> Tensor:
    """Create a tensor of random numbers of an exponential distribution; none is 0.

    Parameters
    ----------
    *size : int or sequence of int
        The shape.
    lambd : float, optional
        The rate; 1 by default.
    generator : Generator, optional
        The generator; that of the tensor's device by default.
    dtype : dtype, optional
        The element type; float32 by default.
    device : device or str or int, optional
        The device; the default device of this thread otherwise.

    Returns
    -------
    Tensor
        The tensor; its fill is queued on the current stream of its device.
    """
    made = empty(*size, dtype=dtype, device=device)
    fill.exponential(made, lambd, generator)
    return made


def bernoulli(
    input: Tensor,  # noqa: A002 - PyTorch's name
    p: float | None = None,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Create a tensor of ones, each with a probability, and zeros.

    As `torch.bernoulli` on a GPU. A probability outside [0, 1] fails when the work is synchronised.

    Parameters
    ----------
    input : Tensor
        The probability of each element; the result has its shape, dtype and device.
    p : float, optional
        One probability for all elements instead.
    generator : Generator, optional
        The generator; that of the tensor's device by default.
    out : Tensor, optional
        A tensor to fill instead of a new one; it gets this shape.

    Returns
    -------
    Tensor
        The tensor; its fill is queued on the current stream of its device.
    """
    kind = input.numpy_dtype if out is None else None
    made = empty_for("bernoulli", (input.shape,), None, out, kind, input.device, False)
    fill.bernoulli(made, input if p is None else p, generator)
    return made


def rand_like(
    input: Tensor,  # noqa: A002 - PyTorch's name
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    layout: layout | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: memory_format = preserve_format,
) -> Tensor:
    """Create a tensor of uniform random numbers in [0, 1), like another tensor.

    As `torch.rand_like`. The order of dimensions matters: the same seed gives a transposed tensor the same numbers,
    transposed.

    Parameters
    ----------
    input : Tensor
        The tensor whose shape, dtype, device and order of dimensions are used.
    generator : Generator, optional
        The generator; that of the tensor's device by default.
    dtype : dtype, optional
        Another element type.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        Another device.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.
    memory_format : memory_format, optional
        As for `empty_like`.

    Returns
    -------
    Tensor
        The tensor; its fill is queued on the current stream of its device.
    """
    made = new_like("rand_like", input, dtype, device, pin_memory, memory_format, layout, requires_grad)
    fill.uniform(made, 0, 1, generator)
    return made


def randn_like(
    input: Tensor,  # noqa: A002 - PyTorch's name
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    layout: layout | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: memory_format = preserve_format,
) -> Tensor:
    """Create a tensor of random numbers of the standard normal distribution, like another tensor.

    As `torch.randn_like`.

    Parameters
    ----------
    input : Tensor
        The tensor whose shape, dtype, device and order of dimensions are used.
    generator : Generator, optional
        The generator; that of the tensor's device by default.
    dtype : dtype, optional
        Another element type.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        Another device.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.
    memory_format : memory_format, optional
        As for `empty_like`.

    Returns
    -------
    Tensor
        The tensor; its fill is queued on the current stream of its device.
    """
    made = new_like("randn_like", input, dtype, device, pin_memory, memory_format, layout, requires_grad)
    fill.normal(made, 0, 1, generator)
    return made


def randint(
    low: int = 0,
    high: int | Sequence[int] | None = None,
    size: Sequence[int] | None = None,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    layout: layout = strided,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create a tensor of uniform random integers in [low, high).

    As `torch.randint` on a GPU.

    Parameters
    ----------
    low : int, optional
        The smallest value; `randint(high, size)` begins at 0.
    high : int
        The bound, which is not drawn.
    size : sequence of int
        The shape.
    generator : Generator, optional
        The generator; that of the tensor's device by default.
    out : Tensor, optional
        A tensor to fill instead of a new one; it gets this shape.
    dtype : dtype, optional
        The element type; int64 by default.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        The device; the default device of this thread otherwise.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.

    Returns
    -------
    Tensor
        The tensor; its fill is queued on the current stream of its device.
    """
    check_options("randint", layout, requires_grad)
    if size is None and isinstance(high, Sequence):
        size, high = high, None
    if not isinstance(size, Sequence) or isinstance(size, str):
        raise TypeError(f"randint(): argument 'size' must be tuple of ints, not {type(size).__name__}")
    if isinstance(high, Sequence):
        raise TypeError(f"randint(): argument 'high' must be int, not {type(high).__name__}")
    if high is None:
        low, high = 0, low
    kind = np.int64 if dtype is None and out is None else dtype
    made = empty_for("randint", (tuple(size),), None, out, kind, device, pin_memory)
    fill.integers(made, low, high, generator)
    return made


def randint_like(
    input: Tensor,  # noqa: A002 - PyTorch's name
    low: int | None = None,
    high: int | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    layout: layout | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: memory_format = preserve_format,
) -> Tensor:
    """Create a tensor of uniform random integers in [low, high), like another tensor.

    As `torch.randint_like`.

    Parameters
    ----------
    input : Tensor
        The tensor whose shape, dtype, device and order of dimensions are used.
    low : int, optional
        The smallest value; `randint_like(input, high)` begins at 0.
    high : int
        The bound, which is not drawn.
    generator : Generator, optional
        The generator; that of the tensor's device by default.
    dtype : dtype, optional
        Another element type.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        Another device.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.
    memory_format : memory_format, optional
        As for `empty_like`.

    Returns
    -------
    Tensor
        The tensor; its fill is queued on the current stream of its device.
    """
    check_options("randint_like", layout, requires_grad, memory_format)
    if high is None:
        low, high = 0, low
    if high is None:
        raise TypeError("randint_like() missing 1 required positional argument: 'high'")
    made = new_like("randint_like", input, dtype, device, pin_memory, memory_format)
    fill.integers(made, low or 0, high, generator)
    return made


# End of the written lines.
