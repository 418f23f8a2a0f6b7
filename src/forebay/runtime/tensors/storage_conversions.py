"""Conversions of storages to other element types, which typed and untyped storages share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay.runtime.tensors.typed_storage import TypedStorage

__all__ = ["StorageConversions"]


def _converter(name: str, element: str) -> Callable[..., Any]:
    """Return the method that copies a storage with elements of another type."""

    def convert(self: StorageConversions) -> TypedStorage:
        return self._converted(element)

    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = (
        f"Return a copy with elements of type {element}.\n\n"
        "Returns\n-------\nTypedStorage\n    The copy, on the same device."
    )
    return convert


class StorageConversions:
    """Base class of storages: one method for each element type."""

    __slots__ = ()

    @abstractmethod
    def _converted(self, element: str) -> TypedStorage:
        """Return a copy with elements of the named type."""

    double = _converter("double", "float64")
    float = _converter("float", "float32")
    half = _converter("half", "float16")
    bfloat16 = _converter("bfloat16", "bfloat16")
    long = _converter("long", "int64")
    int = _converter("int", "int32")
    short = _converter("short", "int16")
    char = _converter("char", "int8")
    byte = _converter("byte", "uint8")
    bool = _converter("bool", "bool")
    complex_double = _converter("complex_double", "complex128")
    complex_float = _converter("complex_float", "complex64")
