"""What PyTorch calls the types of elements in its messages, and its error for those that a kernel does not serve."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

__all__ = ["TorchType", "device_type", "missing", "named", "torch_type"]


class TorchType(NamedTuple):
    name: str  # PyTorch's
    spelled: str  # what its messages call the C++ type
    digits: int = 0  # of a float


_TYPES = {
    "bool": TorchType("Bool", "bool"),
    "uint8": TorchType("Byte", "unsigned char"),
    "int8": TorchType("Char", "signed char"),
    "uint16": TorchType("UInt16", "short unsigned int"),
    "int16": TorchType("Short", "short int"),
    "uint32": TorchType("UInt32", "unsigned int"),
    "int32": TorchType("Int", "int"),
    "uint64": TorchType("UInt64", "long unsigned int"),
    "int64": TorchType("Long", "long int"),
    "float16": TorchType("Half", "c10::Half", 11),
    "bfloat16": TorchType("BFloat16", "c10::BFloat16", 8),
    "float32": TorchType("Float", "float", 24),
    "float64": TorchType("Double", "double", 53),
    "complex64": TorchType("ComplexFloat", "c10::complex<float>"),
    "complex128": TorchType("ComplexDouble", "c10::complex<double>"),
}


_DEVICE_TYPES = {"host": 0, "cpu": 0, "cuda": 1, "mps": 13, "mtia": 19}
_PRIVATE_USE = 20  # for all kinds that PyTorch has no name for


def device_type(kind: str) -> int:
    """PyTorch's number for a kind of device."""
    return _DEVICE_TYPES.get(kind, _PRIVATE_USE)


@cache  # to ask NumPy takes microseconds
def named(dtype: np.dtype[Any]) -> str:
    """NumPy's name of it, or nothing where PyTorch has no such type."""
    return dtype.name if dtype.isnative and dtype.name in _TYPES else ""


@cache
def torch_type(dtype: np.dtype[Any]) -> TorchType:
    """PyTorch's words for it; where it has none, NumPy's."""
    return _TYPES.get(named(dtype)) or TorchType(str(dtype), str(dtype))


def missing(kernel: str, dtype: np.dtype[Any]) -> NotImplementedError:
    """PyTorch's own error, type and words, for a dtype that its kernel does not serve either."""
    return NotImplementedError(f"\"{kernel}\" not implemented for '{torch_type(dtype).name}'")
