"""Random numbers into a tensor: what PyTorch checks, in its words, and then one draw a launch on the current stream."""

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
from forebay.runtime.base.torch_types import missing, named, torch_type
from forebay.runtime.memory import transfer
from forebay.runtime.random.generator import Generator, default_generator
from forebay.runtime.random.launch_geometry import Geometry, geometry_of, launches
from forebay.runtime.streams.stream import stream_of
from forebay.spi import Draw, Randoms

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["bernoulli", "exponential", "generator_for", "integers", "integers_below", "normal", "uniform"]

_BAREBONES = {"uint16", "uint32", "uint64"}
_LEAST, _MOST = -1 << 63, (1 << 63) - 1
_MANY = 1 << 28  # integers: from so many on, each is made of 64 bits


# ---- The laws


def uniform(target: Tensor, low: float, high: float, generator: Generator | None) -> None:
    """From `low` on, below `high`."""
    low, high = float(low), float(high)
    dtype = _real(target.dtype)
    kind = torch_type(dtype)
    if target.dtype.kind != "c" or target.numel():
        if not kind.digits:
            raise missing("check_uniform_bounds", dtype)
        most = _largest(dtype)
        for name, bound in (("from", low), ("to", high)):
            if not -most <= bound <= most:
                raise RuntimeError(f"{name} is out of bounds for {kind.spelled}")
        if low > high:
            raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={low:g} > to={high:g}")
        if high - low > most:
            raise RuntimeError(
                f"uniform_ expects to-from <= std::numeric_limits<{kind.name}>::max(), but found to={high:g} and "
                f"from={low:g} which result in to-from to exceed the limit"
            )
    first, last = (np.float64(bound).astype(dtype) for bound in (low, high))
    _fill(target, generator, "uniform", (float(first), float(last), float(last - first)))


def normal(target: Tensor, mean: float, std: float, generator: Generator | None) -> None:
    mean, std = float(mean), float(std)
    if not std >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std:g}")
    if target.numel() and not torch_type(_real(target.dtype)).digits:
        raise missing(f"normal_kernel_{target.device.kind}", target.dtype)
    if target.dtype.kind == "c":
        std /= math.sqrt(2)
    _fill(target, generator, "normal", (mean, std, 0.0))


def exponential(target: Tensor, lambd: float, generator: Generator | None) -> None:
    lambd = float(lambd)
    if not lambd > 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd:g}")
    if target.numel() and not torch_type(target.dtype).digits:
        raise RuntimeError(
            "Exponential distribution is a continuous probability distribution. dtype must be a floating point but you "
            f"specified {torch_type(target.dtype).name}"
        )
    _fill(target, generator, "exponential", (lambd, 0.0, 0.0))


def bernoulli(target: Tensor, p: float | Tensor, generator: Generator | None) -> None:
    """Ones with probability `p`, else zeros; a tensor has a probability for each."""
    if not isinstance(p, (int, float, np.number)):
        _by_chances(target, p, generator)
        return
    p = float(p)
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p:g}")
    if target.numel() and (named(target.dtype) in {"", *_BAREBONES} or target.dtype.kind == "c"):
        raise missing(f"bernoulli_scalar_{target.device.kind}_", target.dtype)
    _fill(target, generator, "bernoulli", (p, 0.0, 0.0))


def integers_below(target: Tensor, generator: Generator | None) -> None:
    """All that the dtype has from 0 on; of floats, all up to the first that has a gap behind it."""
    dtype, kind = target.dtype, torch_type(target.dtype)
    if not target.numel():
        return
    if named(dtype) in {"", *_BAREBONES} or dtype.kind == "c":
        raise missing(f"random_kernel_{target.device.kind}", dtype)
    count = (1 << kind.digits) + 1 if kind.digits else _largest_integer(dtype) + 1
    _fill(target, generator, "integers", range_=count, wide=named(dtype) in {"int64", "float64"})


def integers(target: Tensor, low: int, high: int | None, generator: Generator | None) -> None:
    """From `low` on, below `high`, or where that is None, to the last there is."""
    low, kind, full = _integer(low), torch_type(target.dtype), high is None and low == _LEAST
    if full:
        if target.numel():
            _check_all_bits(target)
        _fill(target, generator, "integers", range_=0, wide=True)
        return
    if high is None:
        last = _last_integer(target.dtype)
        if kind.digits:
            low = _up(low, target.dtype, kind.digits)
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
            low, high = _up(low, target.dtype, kind.digits), _down(high, target.dtype, kind.digits)
            if low >= high:
                raise RuntimeError(
                    "random_ expects 'from' casted to dtype to be less than 'to' casted to dtype, but got "
                    f"from={low} >= to={high}"
                )
        last = high - 1
    _check_bounds(target.dtype, low, last)
    count = last - low + 1
    _fill(target, generator, "integers", range_=count, base=low, wide=count >= _MANY)


# ---- What PyTorch finds out about bounds


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of a complex number's parts."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" and named(dtype) else dtype


@cache
def _largest(dtype: np.dtype[Any]) -> float:
    """Of a type of floats."""
    if dtype.name != "bfloat16":
        return float(np.finfo(dtype).max)
    return float(np.uint16(0x7F7F).view(dtype))


def _largest_integer(dtype: np.dtype[Any]) -> int:
    return 1 if dtype.kind == "b" else int(np.iinfo(dtype).max)


def _last_integer(dtype: np.dtype[Any]) -> int:
    if digits := torch_type(dtype).digits:
        return 1 << digits
    if not named(dtype) or dtype.kind == "c":
        raise RuntimeError("random_from_to_impl handles only integral, floating-point and boolean types")
    last = _largest_integer(dtype)
    return last if last <= _MOST else -1  # as PyTorch, which then says that it is out of bounds


def _integer(number: int) -> int:
    if isinstance(number, (bool, np.bool_)):
        raise TypeError(f"a bound of random integers must be an int, not {type(number).__name__}")
    found = index(number)
    if not _LEAST <= found <= _MOST:
        raise ValueError("Overflow when unpacking long long")
    return found


def _there_and_back(number: int, dtype: np.dtype[Any]) -> int:
    """As a number of the dtype, and what int that is; the least for what none is, as x86 processors convert."""
    narrow: Any = np.int64(number) if number <= _MOST else np.int64(_LEAST)
    with np.errstate(over="ignore"):
        if dtype.itemsize < 4:
            narrow = narrow.astype(np.float32)
        there = float(narrow.astype(dtype))
    return int(there) if math.isfinite(there) and -(2.0**63) <= there < 2.0**63 else _LEAST


def _up(low: int, dtype: np.dtype[Any], digits: int) -> int:
    """The next integer from `low` on that the dtype has."""
    found = _there_and_back(low + 1, dtype)
    return found + (1 << max(abs(low + 1).bit_length() - digits, 0)) if found < low else low


def _down(high: int, dtype: np.dtype[Any], digits: int) -> int:
    found = _there_and_back(high - 1, dtype)
    return found - (1 << max(abs(high - 1).bit_length() - digits, 0)) if found >= high else high


def _check_bounds(dtype: np.dtype[Any], low: int, last: int) -> None:
    kind = torch_type(dtype)
    if not named(dtype) or dtype.kind == "c":
        raise RuntimeError("check_random_bounds handles only integral, floating-point and boolean types")
    if kind.digits:
        least, most = -_largest(dtype), _largest(dtype)
    elif dtype.kind == "b":
        least, most = 0, 1
    else:
        least, most = int(np.iinfo(dtype).min), min(int(np.iinfo(dtype).max), _MOST)
    for name, bound in (("from", low), ("to - 1", last)):
        if not least <= bound <= most:
            raise RuntimeError(f"{name} is out of bounds for {kind.spelled}")
        if kind.digits and abs(bound) > 1 << kind.digits:
            warnings.warn(
                f"{name} is out of bounds [-(2^{kind.digits}), 2^{kind.digits}]. Due to precision limitations "
                f"{kind.spelled} can support discrete uniform distribution only within this range.",
                stacklevel=4,
            )


def _check_all_bits(target: Tensor) -> None:
    name = f"random_full_64_bits_range_kernel_{target.device.kind}"
    known = named(target.dtype)
    if known in {"", "bool", "float16", *_BAREBONES} or target.dtype.kind == "c":
        raise missing(name, target.dtype)
    if known not in {"int64", "float64", "float32", "bfloat16"}:
        raise RuntimeError(f"{name} handles only int64, double, float and bfloat16")


# ---- The drawing


def generator_for(target: Tensor, generator: Generator | None) -> tuple[Generator, Geometry]:
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
    law: str,
    numbers: tuple[float, float, float] = (0.0, 0.0, 0.0),
    *,
    range_: int = 0,
    base: int = 0,
    wide: bool = False,
) -> None:
    using, geometry = generator_for(target, generator)
    if not target.numel():
        return
    shape, strides, dtype = target.shape, target.byte_strides, target.dtype
    if any(length > 1 and step == 0 for length, step in zip(shape, strides, strict=True)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )
    if dtype.kind == "c":
        dtype = _real(dtype)
        shape, strides = (*shape, 2), (*strides, dtype.itemsize)
    lanes = 2 if (wide if law == "integers" else dtype.itemsize == 8 and dtype.kind == "f") else 4
    draws, element = [], named(dtype)
    for launch in launches(shape, strides, dtype.itemsize, lanes, geometry):
        seed, offset = using.take_on(target.storage.opened, launch.skipped)
        if launch.count:
            draws.append(
                Draw(
                    law,
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


def _by_chances(target: Tensor, p: Tensor, generator: Generator | None) -> None:
    """The order of the elements is that in which the steps of both tensors decrease, where they agree."""
    using, _ = generator_for(target, generator)
    chances = p.expand(*target.shape)
    if not target.numel():
        return
    if not torch_type(p.dtype).digits:
        raise RuntimeError(f"expected probabilities tensor to have floating type, got {torch_type(p.dtype).name}")
    if named(target.dtype) in {"", *_BAREBONES} or target.dtype.kind == "c":
        raise missing(f"bernoulli_tensor_{target.device.kind}_self_", target.dtype)
    order = list(range(target.ndim))
    both = [(target.byte_strides[dim], chances.byte_strides[dim]) for dim in order]
    for i in range(target.ndim):
        for j in range(i + 1, target.ndim):
            one, other = both[order[i]], both[order[j]]
            if 1 in (target.shape[order[i]], target.shape[order[j]]) or one == other:
                continue
            if all(here <= there for here, there in zip(one, other, strict=True)):
                order[i], order[j] = order[j], order[i]
    kind = np.dtype("f8" if target.dtype == np.float64 else "f4")
    chances = chances.permute(*order).to(target.device).to(dtype=kind).contiguous()
    axes = tuple((target.shape[dim], target.byte_strides[dim]) for dim in reversed(order))
    seed, offset = using.take_on(target.storage.opened, 10)
    plan = Draw(
        "chances",
        named(target.dtype),
        target.data_ptr(),
        target.numel(),
        axes,
        seed,
        offset,
        256,
        chances=chances.data_ptr(),
    )
    _queue(target, [plan], chances)


def _queue(target: Tensor, draws: list[Draw], *read: Tensor) -> None:
    """By the queue, where it draws; else here, and copied there."""
    stream = stream_of(target.storage.opened)
    queue = stream.queue
    if _draws(type(queue)):
        drawing = cast("Randoms", queue)
        with transfer.using(stream, target.storage, *(tensor.storage for tensor in read)):
            tracer = observers.tracer
            begun = tracer.queueing(queue) if tracer else None
            for draw in draws:
                drawing.draw(draw)
            if tracer:
                above = 2 if read else 3
                tracer.queued(queue, begun, "draw", draws[0].law if draws else "random", target.nbytes, None, above)
        for listener in observers.of_launches:
            listener.launched(stream, draws[0].law if draws else "random", read, (target,))
        return
    if capture_state.under_way and stream.capture is not None:
        words = f"{target.device.kind} has its random numbers drawn by the host, which no graph can repeat"
        raise Unsupported(words, ability="Randoms")
    chances = [transfer.read(tensor) for tensor in read]  # in host memory
    low, high = _extent(target.shape, target.byte_strides, target.itemsize)
    memory = np.empty(high - low, np.uint8)
    address = memory.__array_interface__["data"][0] - low
    address -= target.data_ptr()
    for draw in draws:
        where = chances[0].__array_interface__["data"][0] if chances else 0
        draw_now(draw._replace(address=draw.address + address, chances=where))
    transfer.copy_array(target, _strided(memory, -low, target), non_blocking=False)


@cache
def _draws(queue: type) -> bool:
    return issubclass(queue, Randoms)


def _extent(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Where the elements lie, in bytes from the first."""
    ends = [(length - 1) * step for length, step in zip(shape, strides, strict=True)]
    return sum(end for end in ends if end < 0), sum(end for end in ends if end > 0) + itemsize


def _strided(memory: NDArray[np.uint8], start: int, target: Tensor) -> NDArray[Any]:
    return np.ndarray(target.shape, target.dtype, memory.data, start, target.byte_strides)
