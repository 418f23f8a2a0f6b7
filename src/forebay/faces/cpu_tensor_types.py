"""PyTorch's legacy types of CPU tensors, such as `torch.FloatTensor`."""

from __future__ import annotations

from forebay.faces.kind import DeviceKind
from forebay.faces.tensor_types import TensorType

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
BFloat16Tensor = TensorType(_CPU, "BFloat16Tensor", "bfloat16")
BoolTensor = TensorType(_CPU, "BoolTensor", "bool")
ByteTensor = TensorType(_CPU, "ByteTensor", "uint8")
CharTensor = TensorType(_CPU, "CharTensor", "int8")
DoubleTensor = TensorType(_CPU, "DoubleTensor", "float64")
FloatTensor = TensorType(_CPU, "FloatTensor", "float32")
HalfTensor = TensorType(_CPU, "HalfTensor", "float16")
IntTensor = TensorType(_CPU, "IntTensor", "int32")
LongTensor = TensorType(_CPU, "LongTensor", "int64")
ShortTensor = TensorType(_CPU, "ShortTensor", "int16")
