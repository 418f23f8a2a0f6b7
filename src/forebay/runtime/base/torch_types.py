"""PyTorch's names of dtypes and device types in messages, and its error for dtypes that a kernel does not support."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

__all__ = ["TorchType", "device_type", "kind_of_type", "named_type", "not_implemented", "torch_name", "torch_type"]


class TorchType(NamedTuple):
    name: str  # PyTorch's
    spelled: str  # the C++ type in its messages
    digits: int = 0  # significant bits of a floating-point type


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


_DEVICE_TYPES = {"cpu": 0, "cuda": 1, "mps": 13, "mtia": 19}
_PRIVATE_USE = 20  # all kinds unknown to PyTorch


def device_type(kind: str) -> int:
    """Return PyTorch's number of a device kind."""
    return _DEVICE_TYPES.get(kind, _PRIVATE_USE)


def kind_of_type(number: int) -> str:
    """Return the device kind of PyTorch's number. Raises RuntimeError, with PyTorch's text, if there is none."""
    found = next((kind for kind, known in _DEVICE_TYPES.items() if known == number), None)
    if found is None:
        raise RuntimeError(
            f"Unknown device: {number}. If you have recently updated the caffe2.proto file to add a new device type, "
            "did you forget to update the DeviceTypeName() function to reflect such recent changes?"
        )
    return found


@cache  # NumPy takes microseconds
def torch_name(dtype: np.dtype[Any]) -> str:
    """Return the dtype's NumPy name; an empty string if PyTorch has no such type."""
    return dtype.name if dtype.isnative and dtype.name in _TYPES else ""


@cache
def torch_type(dtype: np.dtype[Any]) -> TorchType:
    """Return the dtype's names in PyTorch, or NumPy's if PyTorch has no such type."""
    return _TYPES.get(torch_name(dtype)) or TorchType(str(dtype), str(dtype))


def named_type(name: str) -> str:
    """Return the NumPy name of PyTorch's, such as "float32" of "Float"; an empty string if PyTorch has no such type."""
    return next((known for known, names in _TYPES.items() if names.name == name), "")


def not_implemented(kernel: str, dtype: np.dtype[Any]) -> NotImplementedError:
    """Return PyTorch's error for a dtype that the kernel does not support in PyTorch either."""
    return NotImplementedError(f"\"{kernel}\" not implemented for '{torch_type(dtype).name}'")
