"""Lists of hooks whose registrations can be removed by handle."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import count
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from weakref import ReferenceType, ref

from forebay.backends.common._disposal import interrupts
from forebay.errors import warn_unraisable

__all__ = ["HookList", "HookTable", "RemovableHandle"]

_T = TypeVar("_T")
_numbers = count()


class HookTable(OrderedDict[int, _T]):
    """Registered values by handle id, in registration order. A subclass, since a plain dict has no weak references."""


class RemovableHandle:
    """A handle that removes a registration.

    As a context manager, it removes the registration on exit.

    As `torch.utils.hooks.RemovableHandle`.

    Parameters
    ----------
    hooks_dict : HookTable
        The table that holds the registration.
    """

    def __init__(self, hooks_dict: HookTable[Any]) -> None:
        self.hooks_dict_ref: ReferenceType[HookTable[Any]] = ref(hooks_dict)
        self.id: int = next(_numbers)

    def remove(self) -> None:
        """Remove the registration; does nothing if it was removed before."""
        table = self.hooks_dict_ref()
        if table is not None:
            table.pop(self.id, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()


class HookList(Generic[_T]):
    """Functions of one argument, called in registration order."""

    def __init__(self) -> None:
        self._table: HookTable[Callable[[_T], object]] = HookTable()

    def __bool__(self) -> bool:
        return bool(self._table)

    def __iter__(self) -> Iterator[Callable[[_T], object]]:
        return iter(tuple(self._table.values()))

    def add(self, hook: Callable[[_T], object]) -> RemovableHandle:
        handle = RemovableHandle(self._table)
        self._table[handle.id] = hook
        return handle

    def call(self, argument: _T) -> None:
        """Call all hooks. The first exception propagates and skips the remaining hooks."""
        for hook in self:
            hook(argument)

    def notify(self, argument: _T) -> None:
        """Call all hooks. Each exception becomes a warning, except those of signal handlers."""
        for hook in self:
            try:
                hook(argument)
            except Exception as error:  # a failing hook must not affect other hooks or the graph
                if interrupts(error):
                    raise
                warn_unraisable(f"a hook failed with {type(error).__name__}: {error}")
