"""Element types under PyTorch's names. Each is the NumPy dtype of that name, so either spelling does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

__all__ = [
    "as_dtype",
    "bool_",
    "complex64",
    "complex128",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

bool_ = np.dtype("bool")
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
int8, int16, int32, int64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{bits}") for bits in (16, 32, 64))
complex64, complex128 = np.dtype("complex64"), np.dtype("complex128")


def __getattr__(name: str) -> Any:
    if name != "bfloat16":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from ml_dtypes import bfloat16  # the extra: imported only by whoever asks for the type
    except ImportError as error:
        raise AttributeError("bfloat16 needs ml_dtypes: pip install ml_dtypes") from error
    return np.dtype(bfloat16)


def as_dtype(dtype: DTypeLike | None) -> np.dtype[Any]:
    """The dtype that is meant; None means float32, as in PyTorch.

    TypeError for what NumPy does not know, and for what no device holds: Python objects, elements of no size or of many
    elements.
    """
    if dtype is None:
        return float32
    found: np.dtype[Any] = __getattr__("bfloat16") if dtype == "bfloat16" else np.dtype(dtype)
    if found.hasobject:
        raise TypeError(f"a device cannot hold Python objects, so dtype {found} has no tensor")
    if not found.itemsize or found.subdtype:
        raise TypeError(f"dtype {found} says not how large one element is, so it has no tensor")
    return found
