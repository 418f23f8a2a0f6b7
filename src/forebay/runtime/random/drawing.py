"""Random fills of tensors: generator and geometry, one draw per launch, in the stream's queue or on the host."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from forebay.backends.common.draw_encoding import draw_now
from forebay.errors import Unsupported
from forebay.runtime.base import capture_state, observers
from forebay.runtime.base.torch_types import torch_name
from forebay.runtime.memory import transfer
from forebay.runtime.memory.storage import keep_alive
from forebay.runtime.random import generator as generators
from forebay.runtime.random.generator import Generator
from forebay.runtime.random.launch_geometry import Geometry, Launch, geometry_of, launches
from forebay.runtime.streams.stream import current_stream_for
from forebay.spi import Draw, RandomNumbers

if TYPE_CHECKING:
    from forebay.runtime.streams.stream import Stream
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["draw_elements", "draw_with_parameters", "generator_for", "real_dtype"]


@cache
def real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a complex dtype's parts; other dtypes unchanged."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" and torch_name(dtype) else dtype


def generator_for(target: Tensor, generator: Generator | None, function: str = "", position: str = "") -> Generator:
    """Return the generator to draw with, or the device's default one.

    Raises PyTorch's TypeError for the argument of a function at a position such as " (position 2)".
    """
    if generator is None:
        return generators.default_generator_on(target.raw_storage.opened)
    if not isinstance(generator, Generator):
        raise TypeError(
            f"{function}(): argument 'generator'{position} must be forebay.Generator, not {type(generator).__name__}"
        )
    if generator.device.kind != target.device.kind:
        raise RuntimeError(
            f"Expected a '{target.device.kind}' device type for generator but found '{generator.device.kind}'"
        )
    return generator


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
    storage, dtype = target.raw_storage, target.numpy_dtype
    opened, integers = storage.opened, distribution == "integers"
    chosen = generators.default_generators.get(opened) if generator is None else None
    if chosen is None:
        chosen = generator_for(target, generator, "random_" if integers else f"{distribution}_")
    gpu = opened.port.props
    size = gpu.multi_processor_count, gpu.max_threads_per_multi_processor
    is_64bit = wide if integers else None
    draws = []
    for launch in _launches_of(target.shape, target.byte_strides, dtype, is_64bit, chosen.own_geometry, size):
        seed, offset = chosen.philox.advance(launch.skipped, opened)
        if launch.count:
            address, element = storage.address + target.byte_offset + launch.start, torch_name(real_dtype(dtype))
            place = element, address, launch.count, launch.axes, seed, offset, launch.threads
            draws.append(Draw(distribution, *place, numbers, range_, base, wide))
    if draws:
        _submit(target, draws)


@lru_cache(maxsize=256)  # programs fill tensors of a few shapes repeatedly
def _launches_of(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    is_64bit: bool | None,
    geometry: Geometry | None,
    size: tuple[int, int],
) -> tuple[Launch, ...]:
    """Return the launches that fill a tensor, none for an empty one, on a GPU of a size unless a geometry is given.

    `is_64bit` tells whether an integer is made of 64 random bits; None: the number is one of the dtype.
    """
    if 0 in shape:
        return ()
    if any(length > 1 and stride == 0 for length, stride in zip(shape, strides, strict=True)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )
    if dtype.kind == "c":
        dtype = real_dtype(dtype)
        shape, strides = (*shape, 2), (*strides, dtype.itemsize)
    if is_64bit is None:
        is_64bit = dtype.itemsize == 8 and dtype.kind == "f"
    return launches(shape, strides, dtype.itemsize, 2 if is_64bit else 4, geometry or geometry_of(*size))


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
    _submit(target, [draw], parameters)


def _submit(target: Tensor, draws: list[Draw], *read: Tensor) -> None:
    """Draw in the current stream's queue if it supports draws, else draw on the host and copy the result."""
    stream = current_stream_for(target.raw_storage.opened)
    queue = stream._queue  # noqa: SLF001 -- of a usable device, or `current_stream_for` had raised an error
    if not _supports_draws(type(queue)):
        _draw_on_host(stream, target, draws, *read)
        return
    randoms = cast("RandomNumbers", queue)
    with keep_alive(stream, target.raw_storage, *[tensor.raw_storage for tensor in read] if read else ()):
        tracer = observers.tracer
        begun = tracer.queueing(queue) if tracer else None
        for draw in draws:
            randoms.draw(draw)
        if tracer:
            tracer.queued(queue, begun, "draw", draws[0].distribution, target.nbytes)
    for listener in observers.launch_observers:
        listener.launched(stream, draws[0].distribution, read, (target,))


def _draw_on_host(stream: Stream, target: Tensor, draws: list[Draw], *read: Tensor) -> None:
    """Draw into memory of the host, and copy the result."""
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
