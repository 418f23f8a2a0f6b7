"""Functions of CUDA's device library that kernels call, computed by PyTorch.

Triton names them as NVIDIA's library does, with a suffix for the type: `__nv_tanhf`, `__nv_fast_expf`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from forebay.errors import Unsupported

__all__ = ["device_function"]

_Array = np.ndarray[Any, Any]
_Function = Callable[..., Any]
_SAME = (  # as PyTorch calls them
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "erf",
    "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "fmod", "hypot", "isinf", "lgamma", "log", "log10",
    "log1p", "log2", "nextafter", "pow", "remainder", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip


def _half_away(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.sign() * (numbers.abs() + 0.5).floor()


def _gamma(numbers: torch.Tensor) -> torch.Tensor:
    return torch.tensor([_one_gamma(each) for each in numbers.flatten().tolist()], dtype=numbers.dtype).view(
        numbers.shape
    )


def _one_gamma(number: float) -> float:
    try:
        return math.gamma(number)
    except (ValueError, OverflowError):
        return math.inf if number > 0 else math.nan


def _mask(width: int) -> int:
    return (1 << width) - 1


def _bits(numbers: torch.Tensor, function: Callable[[int, int], int]) -> torch.Tensor:
    width = numbers.element_size() * 8
    found = [function(each, width) for each in numbers.flatten().tolist()]
    signed = [each - (1 << width) if each >> (width - 1) else each for each in found]
    return torch.tensor(signed, dtype=numbers.dtype).view(numbers.shape)


def _upper_half(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    width = one.element_size() * 8
    pairs = zip(one.flatten().tolist(), other.flatten().tolist(), strict=True)
    return torch.tensor([(x * y) >> width for x, y in pairs], dtype=one.dtype).view(one.shape)


_OTHERS: dict[str, _Function] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "divide": torch.div,
    "fma": lambda x, y, z: (x.double() * y.double() + z.double()).to(x.dtype),
    "cbrt": lambda x: x.sign() * x.abs().pow(1 / 3), "rcbrt": lambda x: x.sign() * x.abs().pow(-1 / 3),
    "cospi": lambda x: torch.cos(x * math.pi), "sinpi": lambda x: torch.sin(x * math.pi),
    "cyl_bessel_i0": torch.special.i0, "cyl_bessel_i1": torch.special.i1,
    "erfcinv": lambda x: torch.erfinv(1 - x), "erfcx": torch.special.erfcx,
    "exp10": lambda x: torch.pow(10.0, x), "dim": lambda x, y: (x - y).clamp(min=0),
    "finite": torch.isfinite, "isfinite": torch.isfinite, "isnan": torch.isnan, "signbit": torch.signbit,
    "ilogb": lambda x: torch.frexp(x).exponent - 1, "logb": lambda x: (torch.frexp(x).exponent - 1).to(x.dtype),
    "j0": torch.special.bessel_j0, "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0, "y1": torch.special.bessel_y1,
    "ldexp": torch.ldexp, "scalbn": torch.ldexp, "powi": torch.pow,
    "llrint": torch.round, "rint": torch.round, "nearbyint": torch.round, "llround": _half_away, "round": _half_away,
    "normcdf": torch.special.ndtr, "normcdfinv": torch.special.ndtri,
    "rcp": torch.reciprocal, "rcp64h": torch.reciprocal, "rhypot": lambda x, y: torch.hypot(x, y).reciprocal(),
    "norm3d": lambda *x: torch.stack(x).norm(dim=0), "norm4d": lambda *x: torch.stack(x).norm(dim=0),
    "rnorm3d": lambda *x: torch.stack(x).norm(dim=0).reciprocal(),
    "rnorm4d": lambda *x: torch.stack(x).norm(dim=0).reciprocal(),
    "saturate": lambda x: x.clamp(0, 1), "tgamma": _gamma,
    "popc": lambda x: _bits(x, lambda each, width: (each & _mask(width)).bit_count()),
    "clz": lambda x: _bits(x, lambda each, width: width - (each & _mask(width)).bit_length()),
    "ffs": lambda x: _bits(x, lambda each, width: (each & -each & _mask(width)).bit_length()),
    "brev": lambda x: _bits(x, lambda each, width: int(f"{each & _mask(width):0{width}b}"[::-1], 2)),
    "mulhi": _upper_half,
}  # fmt: skip
_OTHERS |= {name: getattr(torch, name) for name in _SAME}
# The prefix and the suffix tell the types, the rounding and the precision.
_NAME = re.compile(r"__nv_(?:fast_)?(?P<name>\w+?)(?:_r[nzud])?")
_CONVERSION = re.compile(
    r"__nv_(?:float|double|int|uint|ll|ull)2(?P<to>float|double|int|uint|ll|ull)_r(?P<rounding>[nzud])"
)
_ROUNDED: dict[str, _Function] = {"n": torch.round, "z": torch.trunc, "u": torch.ceil, "d": torch.floor}


def device_function(symbol: str, arguments: list[_Array], dtype: np.dtype[Any]) -> _Array:
    """Return the result of a function of the device library, in a type of NumPy.

    Raises Unsupported for one that is not known.
    """
    given = [torch.from_numpy(np.ascontiguousarray(each)) for each in arguments]
    if "_as_" in symbol:  # the same bits
        return np.ascontiguousarray(arguments[0]).view(dtype)
    if conversion := _CONVERSION.fullmatch(symbol):
        is_whole = not conversion["to"].startswith(("float", "double"))
        found = _ROUNDED[conversion["rounding"]](given[0]) if is_whole and given[0].is_floating_point() else given[0]
        return np.asarray(found.numpy()).astype(dtype)
    function = next((_OTHERS[name] for name in _names(symbol) if name in _OTHERS), None)
    if function is None:
        raise Unsupported(f"the interpreter has no {symbol} of the device library: run without values (--shapes-only)")
    return np.asarray(function(*given).numpy()).astype(dtype)


def _names(symbol: str) -> list[str]:
    """Return the names that a function may have without what tells its types, the longest first."""
    match = _NAME.fullmatch(symbol)
    name = match["name"] if match is not None else symbol
    names = [name, *(name.removesuffix(suffix) for suffix in ("f", "d", "ll", "ff", "def", "ef"))]
    prefixes = ("", "f", "d", "u", "ll")
    return [*dict.fromkeys(one.removeprefix(prefix) for one in names for prefix in prefixes)]
