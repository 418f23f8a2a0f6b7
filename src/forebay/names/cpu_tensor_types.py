"""PyTorch's legacy types of CPU tensors, such as `torch.FloatTensor`."""

from __future__ import annotations

from typing import Final

from forebay.names.kind import DeviceKind
from forebay.names.tensor_types import TensorType

__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
]

_CPU = DeviceKind("cpu")
BFloat16Tensor: Final = TensorType(_CPU, "BFloat16Tensor", "bfloat16")
BoolTensor: Final = TensorType(_CPU, "BoolTensor", "bool")
ByteTensor: Final = TensorType(_CPU, "ByteTensor", "uint8")
CharTensor: Final = TensorType(_CPU, "CharTensor", "int8")
DoubleTensor: Final = TensorType(_CPU, "DoubleTensor", "float64")
FloatTensor: Final = TensorType(_CPU, "FloatTensor", "float32")
HalfTensor: Final = TensorType(_CPU, "HalfTensor", "float16")
IntTensor: Final = TensorType(_CPU, "IntTensor", "int32")
LongTensor: Final = TensorType(_CPU, "LongTensor", "int64")
ShortTensor: Final = TensorType(_CPU, "ShortTensor", "int16")
