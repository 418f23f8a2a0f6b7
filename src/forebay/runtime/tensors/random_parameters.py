"""Functions that create tensors of random numbers with a parameter per element: `normal` and `poisson`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay._base.dtypes import DTypeLike
from forebay._base.layouts import layout, strided
from forebay.runtime.base import capture_state
from forebay.runtime.memory import transfer
from forebay.runtime.random import fill
from forebay.runtime.random.generator import Generator
from forebay.runtime.streams.stream import current_stream_for
from forebay.runtime.tensors.creation import empty, empty_for
from forebay.runtime.tensors.options import DeviceLike, check_options
from forebay.runtime.tensors.queued_numpy import Arrays, run_on_arrays
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["normal", "poisson"]

_SIGNATURES = """
 * (Tensor mean, Tensor std, *, forebay.Generator generator = None, Tensor out = None)
 * (Tensor mean, float std = 1, *, forebay.Generator generator = None, Tensor out = None)
 * (float mean, Tensor std, *, forebay.Generator generator = None, Tensor out = None)
 * (float mean, float std, tuple of ints size, *, forebay.Generator generator = None, Tensor out = None, \
forebay.dtype dtype = None, forebay.layout layout = None, forebay.device device = None, bool pin_memory = False, \
bool requires_grad = False)
"""


def normal(
    mean: float | Tensor,
    std: float | Tensor | None = None,
    size: Sequence[int] | None = None,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    layout: layout | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create a tensor of random numbers of normal distributions.

    As `torch.normal` on a GPU.

    Parameters
    ----------
    mean : float or Tensor
        The mean, or one mean per element.
    std : float or Tensor, optional
        The standard deviation, or one per element. 1 by default if `mean` is a tensor.
    size : sequence of int
        The shape. Only if neither `mean` nor `std` is a tensor; otherwise it is that of both, broadcast.
    generator : Generator, optional
        The generator; that of the tensor's device by default.
    out : Tensor, optional
        A tensor to fill instead of a new one; it gets this shape.
    dtype : dtype, optional
        The element type, only with `size`; float32 by default. Otherwise that of `mean` if it is a tensor, else `std`.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        The device, only with `size`; the default device of this thread otherwise.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory, only with `size`.

    Returns
    -------
    Tensor
        The tensor; its fill is queued on the current stream of its device.

    Raises
    ------
    TypeError
        If the arguments are of other types, or do not belong together.
    RuntimeError
        If a standard deviation is negative or not a number, or if the tensors are on different devices or their shapes
        do not broadcast.
    DeviceError
        If `std` is a tensor while a graph is captured: its elements are checked on the host.

    Examples
    --------
    >>> import forebay
    >>> _ = forebay.manual_seed(0)
    >>> forebay.normal(forebay.tensor([0.0, 100.0, 200.0]), 1.0)
    tensor([ -0.9247,  99.5747, 197.3562])
    """
    options = {"dtype": dtype, "layout": layout, "device": device}
    flags = {"pin_memory": pin_memory, "requires_grad": requires_grad}
    tensors = [each for each in (mean, std) if isinstance(each, Tensor)]
    numbers = [each for each in (mean, std) if isinstance(each, (int, float, np.integer, np.floating))]
    given = {name: value for name, value in options.items() if value is not None} | {
        name: flag for name, flag in flags.items() if flag
    }
    if generator is not None and not isinstance(generator, Generator):
        numbers = tensors = []  # no signature fits
    if tensors and size is None and not given and len(tensors) + len(numbers) + (std is None) == 2:
        return _with_parameters(mean, 1.0 if std is None else std, generator, out)
    if not isinstance(mean, Tensor) and len(numbers) == 2 and isinstance(size, (tuple, list)):
        check_options("normal", strided if layout is None else layout, requires_grad)
        made = empty_for("normal", (tuple(size),), None, out, dtype, device, pin_memory)
        fill.normal(made, numbers[0], numbers[1], generator)
        return made
    positional = [mean, *(each for each in (std, size) if each is not None)]
    named = {"generator": generator, "out": out} | given
    got = [type(each).__name__ for each in positional]
    got += [f"{name}={type(value).__name__}" for name, value in named.items() if value is not None]
    raise TypeError(
        f"normal() received an invalid combination of arguments - got ({', '.join(got)}), but expected one of:"
        f"{_SIGNATURES}"
    )


def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:  # noqa: A002 -- PyTorch's name
    """Create a tensor of random numbers of Poisson distributions.

    As `torch.poisson` on a GPU. A negative rate fails when the work is synchronised.

    Parameters
    ----------
    input : Tensor
        The rate of each element; the result has its shape, dtype and device.
    generator : Generator, optional
        The generator; that of the tensor's device by default.

    Returns
    -------
    Tensor
        The tensor; its fill is queued on the current stream of its device.

    Raises
    ------
    TypeError
        If an argument has another type.
    NotImplementedError
        If the tensor is not of a floating-point type.

    Examples
    --------
    >>> import forebay
    >>> _ = forebay.manual_seed(0)
    >>> numbers = forebay.poisson(forebay.full((10_000,), 3.5))
    >>> bool(abs(numbers.numpy().mean() - 3.5) < 0.1)
    True
    """
    if not isinstance(input, Tensor):
        raise TypeError(f"poisson(): argument 'input' (position 1) must be Tensor, not {type(input).__name__}")
    made = empty(input.shape, dtype=input.numpy_dtype, device=input.device)
    fill.poisson(made, input, generator)
    return made


def _with_parameters(mean: Any, std: Any, generator: Generator | None, out: Tensor | None) -> Tensor:
    """Draw as PyTorch: standard normal numbers, times the deviations, plus the means, each rounded to the dtype."""
    first = mean if isinstance(mean, Tensor) else std
    if isinstance(mean, Tensor) and isinstance(std, Tensor) and mean.device != std.device:
        kind = (mean if mean.device.kind != "cpu" else std).device.kind.upper()
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but got std is on {std.device}, different from other "
            f"tensors on {mean.device} (when checking argument in method wrapper_{kind}_Tensor_Tensor_normal)"
        )
    if isinstance(std, Tensor):
        _check_deviations(std)
        shape = _broadcast(mean.shape, std.shape) if isinstance(mean, Tensor) else tuple(std.shape)
    else:
        if not std >= 0:
            raise RuntimeError(f"normal expects std >= 0.0, but found std {std:g}")
        shape = tuple(first.shape)
    if out is not None and isinstance(mean, Tensor) != isinstance(std, Tensor):
        shape = _broadcast(shape, out.shape)
    dtype = first.numpy_dtype if out is None else None
    made = empty_for("normal", (shape,), None, out, dtype, first.device, False)
    fill.normal(made, 0, 1 if isinstance(std, Tensor) else std, generator)
    if not made.numel():
        return made
    inputs = [each for each in (std, mean) if isinstance(each, Tensor)]

    def scale(ins: Arrays, outs: Arrays) -> None:
        values = iter(ins)
        deviations = next(values) if isinstance(std, Tensor) else None
        means = next(values) if isinstance(mean, Tensor) else np.asarray(mean, outs[0].dtype)
        if deviations is not None:
            np.multiply(outs[0], _operand(deviations, outs[0]), out=outs[0], casting="unsafe")
        np.add(outs[0], _operand(means, outs[0]), out=outs[0], casting="unsafe")

    streams = [current_stream_for(made.raw_storage.opened)] * len(inputs)
    run_on_arrays(streams, inputs, [made], scale, output_ranks=[0], name="normal")
    return made


def _operand(array: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
    """Convert an operand of arithmetic in place as PyTorch: of the target's dtype, unless its own one is wider."""
    wider = array.dtype.kind not in "iub" and array.dtype.itemsize > target.dtype.itemsize
    if wider and (array.ndim or not target.ndim):
        return array
    if (
        array.dtype.itemsize == target.dtype.itemsize == 2
        and array.dtype != target.dtype
        and array.dtype.kind not in "iu"
    ):
        return array.astype(np.float32)
    return array.astype(target.dtype)


def _check_deviations(std: Tensor) -> None:
    if std.numpy_dtype.kind == "c":
        raise RuntimeError("normal expects standard deviation to be non-complex")
    if not std.numel():
        return
    if capture_state.active:
        capture_state.forbid_on(current_stream_for(std.raw_storage.opened).queue, std.device.kind, "normal")
    if not transfer.read(std).min() >= 0:
        raise RuntimeError("normal expects all elements of std >= 0.0")


def _broadcast(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """Return the common shape. Raises PyTorch's RuntimeError if there is none."""
    rank = max(len(one), len(other))
    first, second = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (one, other))
    for dim in reversed(range(rank)):
        if first[dim] != second[dim] and 1 not in (first[dim], second[dim]):
            raise RuntimeError(
                f"The size of tensor a ({first[dim]}) must match the size of tensor b ({second[dim]}) at non-singleton "
                f"dimension {dim}"
            )
    return tuple(b if a == 1 else a for a, b in zip(first, second, strict=True))
