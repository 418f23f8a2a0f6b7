"""Fill tensors with random numbers: PyTorch's checks of arguments, and its error texts."""

from __future__ import annotations

import math
import warnings
from functools import cache
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.runtime.base.torch_types import not_implemented, torch_name, torch_type
from forebay.runtime.random.drawing import draw_elements, draw_with_parameters, generator_for, real_dtype

if TYPE_CHECKING:
    from forebay.runtime.random.generator import Generator
    from forebay.runtime.tensors.tensor import Tensor

__all__ = [
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "integers",
    "integers_below",
    "log_normal",
    "normal",
    "poisson",
    "uniform",
]

_BAREBONES = {"uint16", "uint32", "uint64"}  # PyTorch's "barebones" dtypes
_INT64_MIN, _INT64_MAX = -1 << 63, (1 << 63) - 1
_WIDE_RANGE = 1 << 28  # ranges of at least this many integers are drawn from 64 bits
_PLAIN = frozenset({int, float})  # classes of most parameters, which need no `_real`


# ---- Distributions


def uniform(target: Tensor, low: float, high: float, generator: Generator | None) -> None:
    """Fill with uniform numbers from [low, high)."""
    if not (low.__class__ in _PLAIN and high.__class__ in _PLAIN):
        low, high = _real("uniform_", "from", 1, low), _real("uniform_", "to", 2, high)
    low, high = float(low), float(high)
    dtype = real_dtype(target.numpy_dtype)
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
    first, last = np.float64(low).astype(dtype), np.float64(high).astype(dtype)
    draw_elements(target, generator, "uniform", (float(first), float(last), float(last - first)))


def normal(target: Tensor, mean: float, std: float, generator: Generator | None) -> None:
    """Fill with normally distributed numbers."""
    if not (mean.__class__ in _PLAIN and std.__class__ in _PLAIN):
        mean, std = _real("normal_", "mean", 1, mean), _real("normal_", "std", 2, std)
    mean, std = float(mean), float(std)
    if not std >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std:g}")
    if not torch_type(real_dtype(target.numpy_dtype)).digits and target.numel():
        raise not_implemented(f"normal_kernel_{target.device.kind}", target.numpy_dtype)
    if target.numpy_dtype.kind == "c":
        std /= math.sqrt(2)
    draw_elements(target, generator, "normal", (mean, std, 0.0))


def exponential(target: Tensor, lambd: float, generator: Generator | None) -> None:
    """Fill with exponentially distributed numbers of rate `lambd`."""
    lambd = _real("exponential_", "lambd", 1, lambd)
    if not lambd > 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd:g}")
    if target.numel() and not torch_type(target.numpy_dtype).digits:
        raise RuntimeError(
            "Exponential distribution is a continuous probability distribution. dtype must be a floating point but you "
            f"specified {torch_type(target.numpy_dtype).name}"
        )
    draw_elements(target, generator, "exponential", (lambd, 0.0, 0.0))


def cauchy(target: Tensor, median: float, sigma: float, generator: Generator | None) -> None:
    """Fill with numbers of a Cauchy distribution."""
    median, sigma = _real("cauchy_", "median", 1, median), _real("cauchy_", "sigma", 2, sigma)
    if not sigma > 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma:g}")
    if not torch_type(target.numpy_dtype).digits:
        raise RuntimeError(
            "Cauchy distribution is a continuous probability distribution. dtype must be a floating point but you "
            f"specified {torch_type(target.numpy_dtype).spelled}"
        )
    draw_elements(target, generator, "cauchy", (median, sigma, 0.0))


def log_normal(target: Tensor, mean: float, std: float, generator: Generator | None) -> None:
    """Fill with numbers whose logarithms are normally distributed."""
    mean, std = _real("log_normal_", "mean", 1, mean), _real("log_normal_", "std", 2, std)
    if not std > 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std:g}")
    if target.numel() and not torch_type(target.numpy_dtype).digits:
        raise not_implemented(f"log_normal_{target.device.kind}", target.numpy_dtype)
    draw_elements(target, generator, "log_normal", (mean, std, 0.0))


def geometric(target: Tensor, p: float, generator: Generator | None) -> None:
    """Fill with the numbers of trials up to the first success, which has probability `p`."""
    p = _real("geometric_", "p", 1, p)
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p:g}")
    if target.numel() and torch_name(target.numpy_dtype) in {"", "bool", "complex64", "complex128", *_BAREBONES}:
        raise not_implemented(f"geometric_{target.device.kind}", target.numpy_dtype)
    draw_elements(target, generator, "geometric", (p, 0.0, 0.0))


def poisson(target: Tensor, rates: Tensor, generator: Generator | None) -> None:
    """Fill with numbers of Poisson distributions, one rate per element."""
    chosen = generator_for(target, generator, "poisson", " (position 2)")
    position = chosen.philox.advance(20, target.raw_storage.opened)  # also for errors and empty tensors, as PyTorch
    if not torch_type(target.numpy_dtype).digits:
        raise not_implemented(f"poisson_{target.device.kind}", target.numpy_dtype)
    if target.numel():
        draw_with_parameters(target, rates, "poisson", position)


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
    draw_elements(target, generator, "bernoulli", (p, 0.0, 0.0))


def _bernoulli_tensor(target: Tensor, p: Tensor, generator: Generator | None) -> None:
    chosen = generator_for(target, generator, "bernoulli_")
    probabilities = p.expand(*target.shape)
    if not target.numel():
        return
    if not torch_type(p.numpy_dtype).digits:
        raise RuntimeError(f"expected probabilities tensor to have floating type, got {torch_type(p.numpy_dtype).name}")
    if torch_name(target.numpy_dtype) in {"", *_BAREBONES} or target.numpy_dtype.kind == "c":
        raise not_implemented(f"bernoulli_tensor_{target.device.kind}_self_", target.numpy_dtype)
    draw_with_parameters(target, probabilities, "chances", chosen.philox.advance(10, target.raw_storage.opened))


def integers_below(target: Tensor, generator: Generator | None) -> None:
    """Fill with integers from 0 to the dtype's largest; for floats, to 2**digits of the significand."""
    dtype, kind = target.numpy_dtype, torch_type(target.numpy_dtype)
    if not target.numel():
        return
    if torch_name(dtype) in {"", *_BAREBONES} or dtype.kind == "c":
        raise not_implemented(f"random_kernel_{target.device.kind}", dtype)
    count = (1 << kind.digits) + 1 if kind.digits else _largest_integer(dtype) + 1
    draw_elements(target, generator, "integers", range_=count, wide=torch_name(dtype) in {"int64", "float64"})


def integers(target: Tensor, low: int, high: int | None, generator: Generator | None) -> None:
    """Fill with integers from [low, high). With `high` None, up to the largest integer of the dtype."""
    low, high = _integers(low, high)
    dtype, digits = target.numpy_dtype, torch_type(target.numpy_dtype).digits
    if high is None and low == _INT64_MIN:
        if target.numel():
            _check_all_bits(target)
        draw_elements(target, generator, "integers", range_=0, wide=True)
        return
    if high is None:
        last = _last_integer(dtype)
        if digits:
            low = _round_up(low, dtype, digits)
            if low >= last:
                raise RuntimeError(
                    "random_ expects 'from' casted to dtype to be less than or equal to 'to_inc' casted to dtype, but "
                    f"got from={low} > to_inc={last}"
                )
    else:
        if low >= high:
            raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
        if digits:
            low, high = _round_up(low, dtype, digits), _round_down(high, dtype, digits)
            if low >= high:
                raise RuntimeError(
                    "random_ expects 'from' casted to dtype to be less than 'to' casted to dtype, but got "
                    f"from={low} >= to={high}"
                )
        last = high - 1
    lowest, largest = _exact_integers(dtype)
    if not (lowest <= low <= largest and lowest <= last <= largest):
        _check_bounds(dtype, low, last)
    count = last - low + 1
    draw_elements(target, generator, "integers", range_=count, base=low, wide=count >= _WIDE_RANGE)


# ---- PyTorch's checks of arguments


def _real(function: str, name: str, position: int, number: Any) -> float:
    """Return a float argument. Raises PyTorch's TypeError for other types; a tensor must have no dimensions."""
    if isinstance(number, (int, float, np.integer, np.floating)) or getattr(number, "ndim", None) == 0:
        return float(number)
    raise TypeError(f"{function}(): argument '{name}' (position {position}) must be float, not {type(number).__name__}")


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


def _integers(low: int, high: int | None) -> tuple[int, int | None]:
    """Return the bounds of random integers as ints. Raises TypeError or ValueError."""
    bounds = []
    for bound in (low,) if high is None else (low, high):
        if isinstance(bound, (bool, np.bool_)):
            raise TypeError(f"a bound of random integers must be an int, not {type(bound).__name__}")
        bounds.append(index(bound))
        if not _INT64_MIN <= bounds[-1] <= _INT64_MAX:
            raise ValueError("Overflow when unpacking long long")
    return bounds[0], None if high is None else bounds[1]


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


@cache
def _exact_integers(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the bounds of the integers that the dtype represents exactly, for which `_check_bounds` does nothing."""
    if not torch_name(dtype) or dtype.kind == "c":
        raise RuntimeError("check_random_bounds handles only integral, floating-point and boolean types")
    if digits := torch_type(dtype).digits:
        return -1 << digits, 1 << digits
    return (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), min(int(np.iinfo(dtype).max), _INT64_MAX))


def _check_bounds(dtype: np.dtype[Any], low: int, last: int) -> None:
    """Raise or warn as PyTorch for bounds that the dtype does not represent exactly. Warns its callers' caller."""
    kind = torch_type(dtype)
    lowest, largest = (-_largest(dtype), _largest(dtype)) if kind.digits else _exact_integers(dtype)
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
