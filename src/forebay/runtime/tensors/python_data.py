"""Arrays of the data that `tensor` accepts: which dtype it has, and PyTorch's errors for data that is not a tensor."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["array_of", "check_array", "unsupported_dtype"]

_SUPPORTED = (
    "float64, float32, float16, complex64, complex128, int64, int32, int16, int8, "
    "uint64, uint32, uint16, uint8, and bool"
)
_DEFAULTS = {"f": np.dtype("f4"), "c": np.dtype("c8")}  # of Python's floats and complex numbers
_INT64 = np.dtype("i8")
_LIMIT = 1 << 63


def check_array(array: NDArray[Any]) -> None:
    """Raise TypeError, with PyTorch's text, for an array of Python objects."""
    if array.dtype.hasobject:
        raise unsupported_dtype(array.dtype)


def unsupported_dtype(dtype: np.dtype[Any]) -> TypeError:
    """Return PyTorch's error for elements that a tensor cannot have."""
    name = dtype.type.__name__
    return TypeError(f"can't convert np.ndarray of type numpy.{name}. The only supported types are: {_SUPPORTED}.")


def array_of(data: Any, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    """Return numbers, nested sequences or an array as an array of that dtype, or of the one that PyTorch infers.

    Raises TypeError, ValueError or RuntimeError, with PyTorch's texts, for other data and for numbers that overflow.
    """
    if isinstance(data, (str, bytes)):
        raise _invalid(data)
    if hasattr(data, "dtype"):  # an array or a NumPy scalar
        array = np.asarray(data)
        check_array(array)
        return array if dtype is None else _cast(array, dtype)
    if isinstance(data, (bytearray, memoryview)):
        data = list(data)
    try:
        array = np.asarray(data)
    except (ValueError, TypeError) as error:  # nested sequences of different lengths
        found = _error(data, dtype)
        if found is None and 0 in (sizes := _sizes(data)[0]):  # PyTorch does not read the others
            return np.empty(sizes, np.float32 if dtype is None else dtype)
        raise found or error from None
    kind = array.dtype.kind
    if (kind in "OUS" or array.dtype == np.uint64) and (found := _error(data, dtype)) is not None:
        raise found
    if dtype is None:
        return array if (default := _DEFAULTS.get(kind)) is None or _numpy_leaf(data) else _cast(array, default)
    _check_range(array, dtype)
    return _cast(array, dtype)


def _cast(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        return array.astype(dtype)


def _check_range(array: NDArray[Any], dtype: np.dtype[Any]) -> None:
    if array.dtype.kind == "c" and dtype.kind in "iuf":
        raise _not_a_number(0j, dtype)
    if dtype.kind not in "iu" or not array.size or array.dtype.kind not in "iuf":
        return
    if array.dtype == np.uint64 and dtype != np.uint64:
        raise ValueError("Overflow when unpacking long long")
    info = np.iinfo(dtype)
    low = info.min if dtype.kind == "i" else -info.max  # negative numbers wrap around
    numbers = np.trunc(array) if array.dtype.kind == "f" else array
    if not (low <= numbers.min() and numbers.max() <= info.max):  # also if one is NaN
        raise RuntimeError(f"value cannot be converted to type {dtype.name} without overflow")


# PyTorch's reading of nested sequences, to find the error in data that NumPy does not read as numbers.


def _error(data: Any, dtype: np.dtype[Any] | None) -> Exception | None:
    sizes, level = _sizes(data)
    if isinstance(level, str):
        return ValueError("too many dimensions 'str'")
    if dtype is None:
        dtype = _INT64
        for leaf in _leaves(data):
            if isinstance(leaf, (str, bytes)):
                return _invalid(leaf)
            if not isinstance(leaf, (int, float, complex)) and not hasattr(leaf, "dtype"):
                return RuntimeError(f"Could not infer dtype of {type(leaf).__name__}")
            if isinstance(leaf, complex) or (isinstance(leaf, float) and dtype.kind != "c"):
                dtype = np.dtype("c8" if isinstance(leaf, complex) else "f4")
    return None if 0 in sizes else _error_of_level(data, dtype, sizes, 0)


def _sizes(data: Any) -> tuple[list[int], Any]:
    """Return the lengths of the first sequence of each level, and the first leaf."""
    sizes = []
    while _is_nested(data):
        sizes.append(len(data))
        if not data:
            break
        data = data[0]
    return sizes, data


def _error_of_level(level: Any, dtype: np.dtype[Any], sizes: list[int], dim: int) -> Exception | None:
    if dim == len(sizes):
        return _error_of_leaf(level, dtype)
    if not _is_nested(level):
        return TypeError("not a sequence")
    if len(level) != sizes[dim]:
        return ValueError(f"expected sequence of length {sizes[dim]} at dim {dim} (got {len(level)})")
    errors = (_error_of_level(each, dtype, sizes, dim + 1) for each in level)
    return next((error for error in errors if error is not None), None)


def _error_of_leaf(leaf: Any, dtype: np.dtype[Any]) -> Exception | None:
    if isinstance(leaf, (float, np.generic)) or dtype.kind not in "iufb":
        return None
    if dtype.kind == "f":
        return None if hasattr(leaf, "__float__") else _not_a_number(leaf, dtype)
    try:
        number = operator.index(leaf)
    except TypeError:
        return _not_a_number(leaf, dtype)
    overflows = dtype.kind == "i" and not -_LIMIT <= number < _LIMIT
    return ValueError("Overflow when unpacking long long") if overflows else None


def _not_a_number(leaf: Any, dtype: np.dtype[Any]) -> TypeError:
    name = type(leaf).__name__
    if dtype.kind == "f":
        return TypeError(f"must be real number, not {name}")
    return TypeError(f"'{name}' object cannot be interpreted as an integer")


def _invalid(data: object) -> TypeError:
    return TypeError(f"new(): invalid data type '{type(data).__name__}'")


def _is_nested(level: Any) -> bool:
    return isinstance(level, Sequence) and not isinstance(level, (str, bytes))


def _leaves(data: Any) -> Iterator[Any]:
    if _is_nested(data):
        for each in data:
            yield from _leaves(each)
    else:
        yield data


def _numpy_leaf(data: Any) -> bool:
    """Return True if the first number is one of NumPy's, whose dtype is kept."""
    return hasattr(_sizes(data)[1], "dtype")
