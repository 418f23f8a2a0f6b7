"""Conversions of storages to other element types by name, such as `TypedStorage.float`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from forebay.runtime.tensors.typed_storage import TypedStorage

__all__ = ["converter"]


class _Convertible(Protocol):
    def _converted(self, element: str) -> TypedStorage: ...


def converter(name: str, element: str) -> Callable[..., Any]:
    """Return the method that copies a storage with elements of another type."""

    def convert(self: _Convertible) -> TypedStorage:
        return self._converted(element)

    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = (
        f"Return a copy with elements of type {element}.\n\n"
        "Returns\n-------\nTypedStorage\n    The copy, on the same device."
    )
    return convert
