"""PyTorch's legacy storages of CPU memory, such as `torch.FloatStorage`."""

from __future__ import annotations

from typing import ClassVar

from forebay.names.kind import DeviceKind
from forebay.names.legacy_storage import LegacyStorage

__all__ = [
    "BFloat16Storage",
    "BoolStorage",
    "ByteStorage",
    "CharStorage",
    "ComplexDoubleStorage",
    "ComplexFloatStorage",
    "DoubleStorage",
    "FloatStorage",
    "HalfStorage",
    "IntStorage",
    "LongStorage",
    "ShortStorage",
]


class _CpuStorage(LegacyStorage):
    kind: ClassVar[DeviceKind] = DeviceKind("cpu")
    classes_by_element: ClassVar[dict[str, type[LegacyStorage]]] = {}

    def __init_subclass__(cls) -> None:
        cls.__module__ = "forebay"
        cls.__doc__ = f"A legacy storage of {cls.element} elements in CPU memory. As `torch.{cls.__name__}`."
        cls.classes_by_element[cls.element] = cls


class ByteStorage(_CpuStorage):
    element = "uint8"


class DoubleStorage(_CpuStorage):
    element = "float64"


class FloatStorage(_CpuStorage):
    element = "float32"


class HalfStorage(_CpuStorage):
    element = "float16"


class LongStorage(_CpuStorage):
    element = "int64"


class IntStorage(_CpuStorage):
    element = "int32"


class ShortStorage(_CpuStorage):
    element = "int16"


class CharStorage(_CpuStorage):
    element = "int8"


class BoolStorage(_CpuStorage):
    element = "bool"


class BFloat16Storage(_CpuStorage):
    element = "bfloat16"


class ComplexDoubleStorage(_CpuStorage):
    element = "complex128"


class ComplexFloatStorage(_CpuStorage):
    element = "complex64"
