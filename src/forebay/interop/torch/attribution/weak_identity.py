"""Weak tables of objects by their identity: modules and optimizers of programs may define `__eq__` and no hash."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import ref

__all__ = ["WeakIdentityTable"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class WeakIdentityTable(Generic[_Key, _Value]):
    """Values of objects that are alive. No method of the objects is called."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[ref[_Key], _Value]] = {}

    def __contains__(self, key: _Key) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[_Key]:
        return iter([each for each in (found[0]() for found in [*self._items.values()]) if each is not None])

    def get(self, key: _Key) -> _Value | None:
        """Return the value of an object; None if it has none."""
        found = self._items.get(id(key))
        return found[1] if found is not None and found[0]() is key else None

    def set(self, key: _Key, value: _Value) -> None:
        """Set the value of an object, which must not be None."""
        number, items = id(key), self._items

        def forget(ended: ref[_Key]) -> None:
            if (found := items.get(number)) is not None and found[0] is ended:
                items.pop(number, None)

        items[number] = ref(key, forget), value

    def discard(self, key: _Key) -> None:
        """Remove an object."""
        if key in self:
            del self._items[id(key)]
