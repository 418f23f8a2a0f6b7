"""Random fills of tensors: generator and geometry, one draw per launch, in the stream's queue or on the host."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from forebay.backends.common.draw_encoding import draw_now
from forebay.errors import Unsupported
from forebay.runtime.base import capture_state, observers
from forebay.runtime.base.torch_types import torch_name
from forebay.runtime.memory import transfer
from forebay.runtime.random.generator import Generator, default_generator
from forebay.runtime.random.launch_geometry import Geometry, geometry_of, launches
from forebay.runtime.streams.stream import current_stream_for
from forebay.spi import Draw, RandomNumbers

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["draw_elements", "draw_with_parameters", "generator_for", "real_dtype"]


def real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a complex dtype's parts; other dtypes unchanged."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" and torch_name(dtype) else dtype


def generator_for(
    target: Tensor, generator: Generator | None, function: str = "", position: str = ""
) -> tuple[Generator, Geometry]:
    """Return the generator, or the device's default one, and the geometry to draw with.

    Raises PyTorch's TypeError for the argument of a function at a position such as " (position 2)".
    """
    if generator is None:
        generator = default_generator(target.device)
    elif not isinstance(generator, Generator):
        raise TypeError(
            f"{function}(): argument 'generator'{position} must be forebay.Generator, not {type(generator).__name__}"
        )
    elif generator.device.kind != target.device.kind:
        raise RuntimeError(
            f"Expected a '{target.device.kind}' device type for generator but found '{generator.device.kind}'"
        )
    return generator, generator.geometry or geometry_of(target.raw_storage.opened.port.props)


def draw_elements(
    target: Tensor,
    generator: Generator | None,
    distribution: str,
    numbers: tuple[float, float, float] = (0.0, 0.0, 0.0),
    *,
    range_: int = 0,
    base: int = 0,
    wide: bool = False,
) -> None:
    """Fill with a distribution whose parameters are the same for all elements."""
    function = "random_" if distribution == "integers" else f"{distribution}_"
    generator, geometry = generator_for(target, generator, function)
    if not target.numel():
        return
    shape: tuple[int, ...] = target.shape
    strides, dtype = target.byte_strides, target.numpy_dtype
    if any(length > 1 and stride == 0 for length, stride in zip(shape, strides, strict=True)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )
    if dtype.kind == "c":
        dtype = real_dtype(dtype)
        shape, strides = (*shape, 2), (*strides, dtype.itemsize)
    is_64bit = wide if distribution == "integers" else dtype.itemsize == 8 and dtype.kind == "f"
    draws, element = [], torch_name(dtype)
    for launch in launches(shape, strides, dtype.itemsize, 2 if is_64bit else 4, geometry):
        seed, offset = generator.advance_on(target.raw_storage.opened, launch.skipped)
        if launch.count:
            draws.append(
                Draw(
                    distribution,
                    element,
                    target.raw_address() + launch.start,
                    launch.count,
                    launch.axes,
                    seed,
                    offset,
                    launch.threads,
                    numbers,
                    range_,
                    base,
                    wide,
                )
            )
    _queue(target, draws)


def draw_with_parameters(target: Tensor, parameters: Tensor, distribution: str, position: tuple[int, int]) -> None:
    """Fill with a distribution that has one parameter per element, from a seed and an offset.

    Elements are ordered by descending strides where both tensors agree.
    """
    order = list(range(target.ndim))
    strides = [(target.byte_strides[dim], parameters.byte_strides[dim]) for dim in order]
    for i in range(target.ndim):
        for j in range(i + 1, target.ndim):
            first, second = strides[order[i]], strides[order[j]]
            if 1 in (target.shape[order[i]], target.shape[order[j]]) or first == second:
                continue
            if all(one <= other for one, other in zip(first, second, strict=True)):
                order[i], order[j] = order[j], order[i]
    kind = np.dtype("f8" if target.numpy_dtype == np.float64 else "f4")
    parameters = parameters.permute(*order).to(target.device).to(dtype=kind).contiguous()
    axes = tuple((target.shape[dim], target.byte_strides[dim]) for dim in reversed(order))
    draw = Draw(
        distribution,
        torch_name(target.numpy_dtype),
        target.raw_address(),
        target.numel(),
        axes,
        *position,
        256,
        probabilities=parameters.raw_address(),
    )
    _queue(target, [draw], parameters)


def _queue(target: Tensor, draws: list[Draw], *read: Tensor) -> None:
    """Draw in the current stream's queue if it supports draws, else draw on the host and copy the result."""
    stream = current_stream_for(target.raw_storage.opened)
    queue = stream.queue
    if _supports_draws(type(queue)):
        randoms = cast("RandomNumbers", queue)
        with transfer.keep_alive(stream, target.raw_storage, *(tensor.raw_storage for tensor in read)):
            tracer = observers.tracer
            begun = tracer.queueing(queue) if tracer else None
            for draw in draws:
                randoms.draw(draw)
            if tracer:
                tracer.queued(queue, begun, "draw", draws[0].distribution if draws else "random", target.nbytes)
        for listener in observers.launch_observers:
            listener.launched(stream, draws[0].distribution if draws else "random", read, (target,))
        return
    if capture_state.active and stream.capture is not None:
        message = f"{target.device.kind} draws random numbers on the host, which a graph cannot capture"
        raise Unsupported(message, ability="RandomNumbers")
    probabilities = [transfer.read(tensor) for tensor in read]  # in host memory
    low, high = _extent(target.shape, target.byte_strides, target.itemsize)
    memory = np.empty(high - low, np.uint8)
    shift = memory.__array_interface__["data"][0] - low - target.raw_address()
    for draw in draws:
        source = probabilities[0].__array_interface__["data"][0] if probabilities else 0
        draw_now(draw._replace(address=draw.address + shift, probabilities=source))
    transfer.copy_array(target, _strided(memory, -low, target), non_blocking=False)


@cache
def _supports_draws(queue: type) -> bool:
    return issubclass(queue, RandomNumbers)


def _extent(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Return the byte range of the elements, relative to the first element."""
    ends = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    return sum(end for end in ends if end < 0), sum(end for end in ends if end > 0) + itemsize


def _strided(memory: NDArray[np.uint8], start: int, target: Tensor) -> NDArray[Any]:
    return np.ndarray(target.shape, target.numpy_dtype, memory.data, start, target.byte_strides)
