"""Legacy storages and tensor types of CUDA devices (`torch.cuda.FloatStorage`, `torch.cuda.FloatTensor`, …)."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Self

from forebay.cuda._kind import CUDA
from forebay.names.legacy_storage import LegacyStorage
from forebay.names.tensor_types import TensorType

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


_STORAGE_DOC = """A legacy storage of {element} elements on a CUDA device.

Parameters
----------
*args : int or sequence, optional
    The number of elements, or their values; no elements by default.
wrap_storage : UntypedStorage, optional
    A storage whose memory to share instead.
dtype : None
    Rejected: the class determines it.
device : None
    Rejected: the storage is on the current device.
_internal : bool, default False
    Do not warn.

Raises
------
RuntimeError, TypeError
    If the arguments do not match this signature.

Warns
-----
UserWarning
    Once per process: storages are deprecated.

Notes
-----
As `torch.cuda.{name}`. Initialises CUDA.
"""


class _CudaStorage(LegacyStorage):
    kind = CUDA
    classes_by_element: ClassVar[dict[str, type[LegacyStorage]]] = {}

    def __init_subclass__(cls) -> None:
        cls.__module__ = "forebay.cuda"
        cls.__doc__ = _STORAGE_DOC.format(element=cls.element, name=cls.__name__)
        cls.classes_by_element[cls.element] = cls


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


BFloat16Tensor: Final = TensorType(CUDA, "BFloat16Tensor", "bfloat16")
BoolTensor: Final = TensorType(CUDA, "BoolTensor", "bool")
ByteTensor: Final = TensorType(CUDA, "ByteTensor", "uint8")
CharTensor: Final = TensorType(CUDA, "CharTensor", "int8")
DoubleTensor: Final = TensorType(CUDA, "DoubleTensor", "float64")
FloatTensor: Final = TensorType(CUDA, "FloatTensor", "float32")
HalfTensor: Final = TensorType(CUDA, "HalfTensor", "float16")
IntTensor: Final = TensorType(CUDA, "IntTensor", "int32")
LongTensor: Final = TensorType(CUDA, "LongTensor", "int64")
ShortTensor: Final = TensorType(CUDA, "ShortTensor", "int16")


def _lazy_new(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
    """Initialise CUDA, then create the object (`torch.cuda._lazy_new`)."""
    CUDA.initialisation.ensure()
    return super(_CudaBase, cls).__new__(cls, *args, **kwargs)


class _CudaBase:
    """A mixin for classes of CUDA objects; creating one initialises CUDA (`torch.cuda._CudaBase`)."""

    is_cuda = True
    is_sparse = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        instance: Self = _lazy_new(cls, *args, **kwargs)
        return instance

    def type(self, *args: Any, **kwargs: Any) -> Any:
        return super().type(*args, **kwargs)  # type: ignore[misc]  # of the other base class
