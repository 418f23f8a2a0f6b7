"""Fill tensors with random numbers: PyTorch's argument checks and error texts, then one draw per launch."""

from __future__ import annotations

import math
import warnings
from functools import cache
from operator import index
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from forebay.backends.common.draw_encoding import draw_now
from forebay.errors import Unsupported
from forebay.runtime.base import capture_state, observers
from forebay.runtime.base.torch_types import not_implemented, torch_name, torch_type
from forebay.runtime.memory import transfer
from forebay.runtime.random.generator import Generator, default_generator
from forebay.runtime.random.launch_geometry import Geometry, geometry_of, launches
from forebay.runtime.streams.stream import current_stream_for
from forebay.spi import Draw, RandomNumbers

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["bernoulli", "exponential", "generator_for", "integers", "integers_below", "normal", "uniform"]

_BAREBONES = {"uint16", "uint32", "uint64"}  # PyTorch's "barebones" dtypes
_INT64_MIN, _INT64_MAX = -1 << 63, (1 << 63) - 1
_WIDE_RANGE = 1 << 28  # ranges of at least this many integers are drawn from 64 bits


# ---- Distributions


def uniform(target: Tensor, low: float, high: float, generator: Generator | None) -> None:
    """Fill with uniform numbers from [low, high)."""
    low, high = float(low), float(high)
    dtype = _real_dtype(target.numpy_dtype)
    kind = torch_type(dtype)
    if target.numpy_dtype.kind != "c" or target.numel():
        if not kind.digits:
            raise not_implemented("check_uniform_bounds", dtype)
        largest = _largest(dtype)
        for name, bound in (("from", low), ("to", high)):
            if not -largest <= bound <= largest:
                raise RuntimeError(f"{name} is out of bounds for {kind.spelled}")
        if low > high:
            raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={low:g} > to={high:g}")
        if high - low > largest:
            raise RuntimeError(
                f"uniform_ expects to-from <= std::numeric_limits<{kind.name}>::max(), but found to={high:g} and "
                f"from={low:g} which result in to-from to exceed the limit"
            )
    first, last = (np.float64(bound).astype(dtype) for bound in (low, high))
    _fill(target, generator, "uniform", (float(first), float(last), float(last - first)))


def normal(target: Tensor, mean: float, std: float, generator: Generator | None) -> None:
    """Fill with normally distributed numbers."""
    mean, std = float(mean), float(std)
    if not std >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std:g}")
    if target.numel() and not torch_type(_real_dtype(target.numpy_dtype)).digits:
        raise not_implemented(f"normal_kernel_{target.device.kind}", target.numpy_dtype)
    if target.numpy_dtype.kind == "c":
        std /= math.sqrt(2)
    _fill(target, generator, "normal", (mean, std, 0.0))


def exponential(target: Tensor, lambd: float, generator: Generator | None) -> None:
    """Fill with exponentially distributed numbers of rate `lambd`."""
    lambd = float(lambd)
    if not lambd > 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd:g}")
    if target.numel() and not torch_type(target.numpy_dtype).digits:
        raise RuntimeError(
            "Exponential distribution is a continuous probability distribution. dtype must be a floating point but you "
            f"specified {torch_type(target.numpy_dtype).name}"
        )
    _fill(target, generator, "exponential", (lambd, 0.0, 0.0))


def bernoulli(target: Tensor, p: float | Tensor, generator: Generator | None) -> None:
    """Fill with ones with probability `p` and zeros otherwise. A tensor `p` holds one probability per element."""
    if not isinstance(p, (int, float, np.number)):
        _bernoulli_tensor(target, p, generator)
        return
    p = float(p)
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p:g}")
    if target.numel() and (torch_name(target.numpy_dtype) in {"", *_BAREBONES} or target.numpy_dtype.kind == "c"):
        raise not_implemented(f"bernoulli_scalar_{target.device.kind}_", target.numpy_dtype)
    _fill(target, generator, "bernoulli", (p, 0.0, 0.0))


def integers_below(target: Tensor, generator: Generator | None) -> None:
    """Fill with integers from 0 to the dtype's largest; for floats, to 2**digits of the significand."""
    dtype, kind = target.numpy_dtype, torch_type(target.numpy_dtype)
    if not target.numel():
        return
    if torch_name(dtype) in {"", *_BAREBONES} or dtype.kind == "c":
        raise not_implemented(f"random_kernel_{target.device.kind}", dtype)
    count = (1 << kind.digits) + 1 if kind.digits else _largest_integer(dtype) + 1
    _fill(target, generator, "integers", range_=count, wide=torch_name(dtype) in {"int64", "float64"})


def integers(target: Tensor, low: int, high: int | None, generator: Generator | None) -> None:
    """Fill with integers from [low, high). With `high` None, up to the largest integer of the dtype."""
    low, kind, full = _integer(low), torch_type(target.numpy_dtype), high is None and low == _INT64_MIN
    if full:
        if target.numel():
            _check_all_bits(target)
        _fill(target, generator, "integers", range_=0, wide=True)
        return
    if high is None:
        last = _last_integer(target.numpy_dtype)
        if kind.digits:
            low = _round_up(low, target.numpy_dtype, kind.digits)
            if low >= last:
                raise RuntimeError(
                    "random_ expects 'from' casted to dtype to be less than or equal to 'to_inc' casted to dtype, but "
                    f"got from={low} > to_inc={last}"
                )
    else:
        high = _integer(high)
        if low >= high:
            raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
        if kind.digits:
            low = _round_up(low, target.numpy_dtype, kind.digits)
            high = _round_down(high, target.numpy_dtype, kind.digits)
            if low >= high:
                raise RuntimeError(
                    "random_ expects 'from' casted to dtype to be less than 'to' casted to dtype, but got "
                    f"from={low} >= to={high}"
                )
        last = high - 1
    _check_bounds(target.numpy_dtype, low, last)
    count = last - low + 1
    _fill(target, generator, "integers", range_=count, base=low, wide=count >= _WIDE_RANGE)


# ---- PyTorch's checks of bounds


def _real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a complex dtype's parts; other dtypes unchanged."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" and torch_name(dtype) else dtype


@cache
def _largest(dtype: np.dtype[Any]) -> float:
    """Return the largest finite value of a floating-point dtype."""
    if dtype.name != "bfloat16":
        return float(np.finfo(dtype).max)
    return float(np.uint16(0x7F7F).view(dtype))


def _largest_integer(dtype: np.dtype[Any]) -> int:
    return 1 if dtype.kind == "b" else int(np.iinfo(dtype).max)


def _last_integer(dtype: np.dtype[Any]) -> int:
    if digits := torch_type(dtype).digits:
        return 1 << digits
    if not torch_name(dtype) or dtype.kind == "c":
        raise RuntimeError("random_from_to_impl handles only integral, floating-point and boolean types")
    last = _largest_integer(dtype)
    return last if last <= _INT64_MAX else -1  # as in PyTorch, which then reports it as out of bounds


def _integer(number: int) -> int:
    if isinstance(number, (bool, np.bool_)):
        raise TypeError(f"a bound of random integers must be an int, not {type(number).__name__}")
    value = index(number)
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise ValueError("Overflow when unpacking long long")
    return value


def _round_trip(number: int, dtype: np.dtype[Any]) -> int:
    """Convert to the dtype and back to int. Values outside int64 become its minimum, as on x86."""
    narrow: Any = np.int64(number) if number <= _INT64_MAX else np.int64(_INT64_MIN)
    with np.errstate(over="ignore"):
        if dtype.itemsize < 4:
            narrow = narrow.astype(np.float32)
        converted = float(narrow.astype(dtype))
    return int(converted) if math.isfinite(converted) and -(2.0**63) <= converted < 2.0**63 else _INT64_MIN


def _round_up(low: int, dtype: np.dtype[Any], digits: int) -> int:
    """Round `low` up to an integer that the dtype represents, as PyTorch (update_from)."""
    rounded = _round_trip(low + 1, dtype)
    return rounded + (1 << max(abs(low + 1).bit_length() - digits, 0)) if rounded < low else low


def _round_down(high: int, dtype: np.dtype[Any], digits: int) -> int:
    """Round `high` down to an integer that the dtype represents, as PyTorch (update_to)."""
    rounded = _round_trip(high - 1, dtype)
    return rounded - (1 << max(abs(high - 1).bit_length() - digits, 0)) if rounded >= high else high


def _check_bounds(dtype: np.dtype[Any], low: int, last: int) -> None:
    kind = torch_type(dtype)
    if not torch_name(dtype) or dtype.kind == "c":
        raise RuntimeError("check_random_bounds handles only integral, floating-point and boolean types")
    if kind.digits:
        lowest, largest = -_largest(dtype), _largest(dtype)
    elif dtype.kind == "b":
        lowest, largest = 0, 1
    else:
        lowest, largest = int(np.iinfo(dtype).min), min(int(np.iinfo(dtype).max), _INT64_MAX)
    for name, bound in (("from", low), ("to - 1", last)):
        if not lowest <= bound <= largest:
            raise RuntimeError(f"{name} is out of bounds for {kind.spelled}")
        if kind.digits and abs(bound) > 1 << kind.digits:
            warnings.warn(
                f"{name} is out of bounds [-(2^{kind.digits}), 2^{kind.digits}]. Due to precision limitations "
                f"{kind.spelled} can support discrete uniform distribution only within this range.",
                stacklevel=4,
            )


def _check_all_bits(target: Tensor) -> None:
    name = f"random_full_64_bits_range_kernel_{target.device.kind}"
    known = torch_name(target.numpy_dtype)
    if known in {"", "bool", "float16", *_BAREBONES} or target.numpy_dtype.kind == "c":
        raise not_implemented(name, target.numpy_dtype)
    if known not in {"int64", "float64", "float32", "bfloat16"}:
        raise RuntimeError(f"{name} handles only int64, double, float and bfloat16")


# ---- Drawing


def generator_for(target: Tensor, generator: Generator | None) -> tuple[Generator, Geometry]:
    """Return the generator, or the device's default one, and the geometry to draw with."""
    if generator is None:
        generator = default_generator(target.device)
    elif not isinstance(generator, Generator):
        raise TypeError(f"generator must be a forebay.Generator, not {type(generator).__name__}")
    elif generator.device.kind != target.device.kind:
        raise RuntimeError(
            f"Expected a '{target.device.kind}' device type for generator but found '{generator.device.kind}'"
        )
    return generator, generator.geometry or geometry_of(target.storage.opened.port.props)


def _fill(
    target: Tensor,
    generator: Generator | None,
    distribution: str,
    numbers: tuple[float, float, float] = (0.0, 0.0, 0.0),
    *,
    range_: int = 0,
    base: int = 0,
    wide: bool = False,
) -> None:
    generator, geometry = generator_for(target, generator)
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
        dtype = _real_dtype(dtype)
        shape, strides = (*shape, 2), (*strides, dtype.itemsize)
    is_64bit = wide if distribution == "integers" else dtype.itemsize == 8 and dtype.kind == "f"
    draws, element = [], torch_name(dtype)
    for launch in launches(shape, strides, dtype.itemsize, 2 if is_64bit else 4, geometry):
        seed, offset = generator.advance_on(target.storage.opened, launch.skipped)
        if launch.count:
            draws.append(
                Draw(
                    distribution,
                    element,
                    target.data_ptr() + launch.start,
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


def _bernoulli_tensor(target: Tensor, p: Tensor, generator: Generator | None) -> None:
    """Draw with one probability per element. Elements are ordered by descending strides where both tensors agree."""
    generator, _ = generator_for(target, generator)
    probabilities = p.expand(*target.shape)
    if not target.numel():
        return
    if not torch_type(p.numpy_dtype).digits:
        raise RuntimeError(f"expected probabilities tensor to have floating type, got {torch_type(p.numpy_dtype).name}")
    if torch_name(target.numpy_dtype) in {"", *_BAREBONES} or target.numpy_dtype.kind == "c":
        raise not_implemented(f"bernoulli_tensor_{target.device.kind}_self_", target.numpy_dtype)
    order = list(range(target.ndim))
    strides = [(target.byte_strides[dim], probabilities.byte_strides[dim]) for dim in order]
    for i in range(target.ndim):
        for j in range(i + 1, target.ndim):
            first, second = strides[order[i]], strides[order[j]]
            if 1 in (target.shape[order[i]], target.shape[order[j]]) or first == second:
                continue
            if all(one <= other for one, other in zip(first, second, strict=True)):
                order[i], order[j] = order[j], order[i]
    kind = np.dtype("f8" if target.numpy_dtype == np.float64 else "f4")
    probabilities = probabilities.permute(*order).to(target.device).to(dtype=kind).contiguous()
    axes = tuple((target.shape[dim], target.byte_strides[dim]) for dim in reversed(order))
    seed, offset = generator.advance_on(target.storage.opened, 10)
    draw = Draw(
        "chances",
        torch_name(target.numpy_dtype),
        target.data_ptr(),
        target.numel(),
        axes,
        seed,
        offset,
        256,
        probabilities=probabilities.data_ptr(),
    )
    _queue(target, [draw], probabilities)


def _queue(target: Tensor, draws: list[Draw], *read: Tensor) -> None:
    """Draw in the current stream's queue if it supports draws, else draw on the host and copy the result."""
    stream = current_stream_for(target.storage.opened)
    queue = stream.queue
    if _supports_draws(type(queue)):
        randoms = cast("RandomNumbers", queue)
        with transfer.keep_alive(stream, target.storage, *(tensor.storage for tensor in read)):
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
    shift = memory.__array_interface__["data"][0] - low - target.data_ptr()
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
