"""Arithmetic of Triton's interpreter as that of a GPU, where NumPy's differs: bfloat16, 8-bit floats, conversions.

Values of bfloat16 are kept as whole numbers of 16 bits, with which Triton's interpreter would compute as such.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

__all__ = ["Arithmetic", "narrow"]

_Array = np.ndarray[Any, Any]
_Handle = interpreter.TensorHandle
_dtype = interpreter._get_np_dtype
_EIGHT_BITS = {tl.float8e4nv: (torch.float8_e4m3fn, 448.0), tl.float8e5: (torch.float8_e5m2, 57344.0)}


def _wide(handle: Any) -> _Array:
    """Return the numbers of a handle in a type of NumPy."""
    data: _Array = handle.data
    kind = handle.dtype.scalar
    if kind == tl.bfloat16 and data.dtype == np.uint16:
        return (data.astype(np.uint32) << 16).view(np.float32)
    if kind in _EIGHT_BITS and data.dtype == np.uint8:
        eight = torch.from_numpy(np.ascontiguousarray(data)).view(_EIGHT_BITS[kind][0])
        wide: _Array = eight.to(torch.float32).numpy()
        return wide
    return data


def narrow(data: _Array, kind: Any) -> _Array:
    """Return numbers in the representation of a type."""
    if kind == tl.bfloat16:
        bits = np.ascontiguousarray(data, dtype=np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(data), 0x7FFF, rounded).astype(np.uint16)
    if kind in _EIGHT_BITS:
        eight, most = _EIGHT_BITS[kind]
        wide = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32)).clamp(-most, most)
        narrow: _Array = wide.to(eight).view(torch.uint8).numpy()
        return narrow
    return data.astype(_dtype(kind))


def _is_custom(kind: Any) -> bool:
    return kind == tl.bfloat16 or kind in _EIGHT_BITS


class Arithmetic(interpreter.InterpreterBuilder):  # type: ignore[misc]  # Triton is not installed where mypy runs
    """The builder of Triton's interpreter, with the arithmetic of a GPU."""

    def _computed(self, handles: tuple[Any, ...], kind: Any, operation: Callable[..., _Array]) -> Any:
        with np.errstate(all="ignore"):
            found = np.asarray(operation(*(_wide(each) for each in handles)))
        if found.dtype == np.bool_ and kind != tl.int1:
            return _Handle(found, kind)  # of a comparison
        if _is_custom(kind):
            return _Handle(narrow(found, kind), kind)
        if not interpreter._validate_np_data_size(found, kind):
            found = found.astype(_dtype(kind))
        return _Handle(found, kind)

    def unary_op(self, arg: Any, op: Callable[..., _Array]) -> Any:
        """Apply a function of NumPy."""
        return self._computed((arg,), arg.dtype.scalar, op)

    def binary_op(self, lhs: Any, rhs: Any, op: Callable[..., _Array]) -> Any:
        """Apply a function of NumPy."""
        return self._computed((lhs, rhs), lhs.dtype.scalar, op)

    def ternary_op(self, lhs: Any, rhs: Any, other: Any, op: Callable[..., _Array]) -> Any:
        """Apply a function of NumPy. `where` moves the elements as they are."""
        if op is np.where:
            return _Handle(np.where(lhs.data, rhs.data, other.data), other.dtype.scalar)
        return self._computed((lhs, rhs, other), other.dtype.scalar, op)

    def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
        """Return the smaller number: that which is not a NaN."""
        return self.binary_op(lhs, rhs, np.fmin)

    def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
        """Return the larger number: that which is not a NaN."""
        return self.binary_op(lhs, rhs, np.fmax)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        """Return x * y + z, rounded once but for numbers of 64 bits."""
        return self._computed((x, y, z), z.dtype.scalar, _multiply_add)

    def create_fneg(self, arg: Any) -> Any:
        """Return the number with the other sign."""
        return self.unary_op(arg, np.negative)

    def create_rsqrt(self, arg: Any) -> Any:
        """Return the inverse of the square root."""
        return self.unary_op(arg, lambda data: (1 / np.sqrt(data)).astype(data.dtype))

    def create_erf(self, arg: Any) -> Any:
        """Return the error function."""
        return self.unary_op(arg, lambda data: torch.erf(torch.from_numpy(np.ascontiguousarray(data))).numpy())

    def create_umulhi(self, lhs: Any, rhs: Any) -> Any:
        """Return the upper half of the product of numbers without a sign."""
        width = lhs.data.dtype.itemsize * 8
        one, other = (each.data.view(f"u{width // 8}").astype(object if width == 64 else np.uint64)
                      for each in (lhs, rhs))  # fmt: skip
        high = np.asarray((one * other) >> width).astype(f"u{width // 8}")
        return _Handle(high.view(lhs.data.dtype), lhs.dtype.scalar)

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: object, max_num_imprecise_acc: object) -> Any:
        """Return a @ b + d, with the precision of the result."""
        del input_precision, max_num_imprecise_acc
        with np.errstate(all="ignore"):
            product = np.matmul(_wide(a), _wide(b), dtype=_wide(d).dtype) + _wide(d)
        return _Handle(narrow(product, d.dtype.scalar), d.dtype.scalar)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        """Convert to another type."""
        kind = dst_type.scalar
        data = _wide(src)
        with np.errstate(all="ignore"):
            if src.dtype.scalar.is_floating() and kind.is_int():
                return _Handle(_whole(data, kind), kind)
            return _Handle(narrow(data, kind), kind)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        """Convert to another floating-point type; those without a type of PyTorch as Triton's interpreter."""
        nearest = rounding_mode is None or rounding_mode == interpreter._ir.ROUNDING_MODE.RTNE
        if nearest and all(_is_known(each.scalar) for each in (src.dtype, dst_type)):
            return self.cast_impl(src, dst_type)
        return super().create_fp_to_fp(src, dst_type, rounding_mode)

    def get_bf16(self, value: float) -> Any:
        """Return a constant."""
        return _Handle(narrow(np.array([value], dtype=np.float32), tl.bfloat16), tl.bfloat16)


def _multiply_add(x: _Array, y: _Array, z: _Array) -> _Array:
    if z.dtype in (np.float16, np.float32):
        return (x.astype(np.float64) * y + z).astype(z.dtype)
    return np.asarray(x * y + z)


def _is_known(kind: Any) -> bool:
    return _is_custom(kind) or kind in (tl.float16, tl.float32, tl.float64)


def _whole(data: _Array, kind: Any) -> _Array:
    """Convert to whole numbers as a GPU: the nearest that the type has, and 0 for a NaN."""
    dtype = _dtype(kind)
    if dtype == np.bool_:
        return np.asarray(data != 0)
    wide = np.trunc(np.nan_to_num(data.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    limits = np.iinfo(dtype)
    low, high = wide <= limits.min, wide >= limits.max
    found = np.where(low | high, 0, wide).astype(dtype)
    return np.where(low, limits.min, np.where(high, limits.max, found)).astype(dtype)
