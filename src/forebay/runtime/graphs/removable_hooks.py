"""Functions that others want called: each registration can be taken back by its handle."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from weakref import ref

from forebay.errors import complain

__all__ = ["Hooks", "RemovableHandle", "Table"]

_T = TypeVar("_T")
_numbers = count()


class Table(OrderedDict[int, _T]):
    """What is registered, in its order. A class of its own, as a plain dict cannot be referred to weakly."""


class RemovableHandle:
    """Takes a registration back. As a context manager it does so at the end. (`torch.utils.hooks.RemovableHandle`)"""

    def __init__(self, hooks_dict: Table[Any]) -> None:
        self.hooks_dict_ref = ref(hooks_dict)
        self.id = next(_numbers)

    def remove(self) -> None:
        """Twice is once."""
        table = self.hooks_dict_ref()
        if table is not None:
            table.pop(self.id, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class Hooks(Generic[_T]):
    """Functions of one argument, called in the order in which they came."""

    def __init__(self) -> None:
        self._table: Table[Callable[[_T], object]] = Table()

    def __bool__(self) -> bool:
        return bool(self._table)

    def add(self, hook: Callable[[_T], object]) -> RemovableHandle:
        handle = RemovableHandle(self._table)
        self._table[handle.id] = hook
        return handle

    def call(self, argument: _T) -> None:
        """What one raises is raised, and ends it."""
        for hook in tuple(self._table.values()):
            hook(argument)

    def tell(self, argument: _T) -> None:
        """Call them all; what one raises becomes a warning."""
        for hook in tuple(self._table.values()):
            try:
                hook(argument)
            except Exception as error:  # noqa: BLE001 -- one listener's failure is not the others', nor the graph's
                complain(f"a hook failed with {type(error).__name__}: {error}")
