"""The legacy storages and tensor types of CUDA devices. (`torch.cuda.FloatStorage`, `torch.cuda.FloatTensor`, …)"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from forebay.cuda._kind import CUDA
from forebay.faces.tensor_types import TensorType
from forebay.faces.typed_storage import TypedStorage

__all__ = [
    "BFloat16Storage",
    "BFloat16Tensor",
    "BoolStorage",
    "BoolTensor",
    "ByteStorage",
    "ByteTensor",
    "CharStorage",
    "CharTensor",
    "ComplexDoubleStorage",
    "ComplexFloatStorage",
    "DoubleStorage",
    "DoubleTensor",
    "FloatStorage",
    "FloatTensor",
    "HalfStorage",
    "HalfTensor",
    "IntStorage",
    "IntTensor",
    "LongStorage",
    "LongTensor",
    "ShortStorage",
    "ShortTensor",
]


class _CudaStorage(TypedStorage):
    kind = CUDA
    family: ClassVar[dict[str, type[TypedStorage]]] = {}

    def __init_subclass__(cls) -> None:
        cls.__module__ = "forebay.cuda"
        cls.family[cls.element] = cls


class ByteStorage(_CudaStorage):
    element = "uint8"


class DoubleStorage(_CudaStorage):
    element = "float64"


class FloatStorage(_CudaStorage):
    element = "float32"


class HalfStorage(_CudaStorage):
    element = "float16"


class LongStorage(_CudaStorage):
    element = "int64"


class IntStorage(_CudaStorage):
    element = "int32"


class ShortStorage(_CudaStorage):
    element = "int16"


class CharStorage(_CudaStorage):
    element = "int8"


class BoolStorage(_CudaStorage):
    element = "bool"


class BFloat16Storage(_CudaStorage):
    element = "bfloat16"


class ComplexDoubleStorage(_CudaStorage):
    element = "complex128"


class ComplexFloatStorage(_CudaStorage):
    element = "complex64"


BFloat16Tensor = TensorType(CUDA, "BFloat16Tensor", "bfloat16")
BoolTensor = TensorType(CUDA, "BoolTensor", "bool")
ByteTensor = TensorType(CUDA, "ByteTensor", "uint8")
CharTensor = TensorType(CUDA, "CharTensor", "int8")
DoubleTensor = TensorType(CUDA, "DoubleTensor", "float64")
FloatTensor = TensorType(CUDA, "FloatTensor", "float32")
HalfTensor = TensorType(CUDA, "HalfTensor", "float16")
IntTensor = TensorType(CUDA, "IntTensor", "int32")
LongTensor = TensorType(CUDA, "LongTensor", "int64")
ShortTensor = TensorType(CUDA, "ShortTensor", "int16")


def _lazy_new(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
    """Initialises CUDA before anything is made. (`torch.cuda._lazy_new`)"""
    CUDA.initialisation.ensure()
    return super(_CudaBase, cls).__new__(cls, *args, **kwargs)


class _CudaBase:
    """A mixin whose instances are of CUDA, and initialise it. (`torch.cuda._CudaBase`)"""

    is_cuda = True
    is_sparse = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made: Self = _lazy_new(cls, *args, **kwargs)
        return made

    def type(self, *args: Any, **kwargs: Any) -> Any:
        return super().type(*args, **kwargs)  # type: ignore[misc]  # of the class beside it
