"""Conversions of storages to other element types, which typed and untyped storages share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from forebay._base.dtypes import as_dtype

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["StorageConversions"]


def _converter(name: str, element: str) -> Callable[..., Any]:
    """Return the method that copies a storage with elements of another type."""

    def convert(self: StorageConversions) -> Any:
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

    if TYPE_CHECKING:  # supplied by the storage class

        @property
        def elements(self) -> Tensor: ...

    def _converted(self, element: str) -> Any:
        """Return a copy with elements of the named type, a TypedStorage."""
        return self.elements.to(dtype=as_dtype(element), copy=True)._typed_storage()  # noqa: SLF001 -- PyTorch's name

    double: Final = _converter("double", "float64")
    float: Final = _converter("float", "float32")
    half: Final = _converter("half", "float16")
    bfloat16: Final = _converter("bfloat16", "bfloat16")
    long: Final = _converter("long", "int64")
    int: Final = _converter("int", "int32")
    short: Final = _converter("short", "int16")
    char: Final = _converter("char", "int8")
    byte: Final = _converter("byte", "uint8")
    bool: Final = _converter("bool", "bool")
    complex_double: Final = _converter("complex_double", "complex128")
    complex_float: Final = _converter("complex_float", "complex64")
