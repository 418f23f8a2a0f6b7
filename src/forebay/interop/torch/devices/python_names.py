"""Replacement of names in PyTorch's modules, which can be undone."""

from __future__ import annotations

import types
from collections.abc import Collection

__all__ = ["NameReplacements"]

_ABSENT = object()


class NameReplacements:
    """Attributes of modules and classes that were replaced."""

    def __init__(self) -> None:
        self._undo: list[tuple[object, str, object]] = []

    def replace(self, owner: object, name: str, new: object) -> None:
        """Set an attribute, which need not exist, and keep the old one."""
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, new)

    def replace_module(self, theirs: types.ModuleType, ours: types.ModuleType, skip: Collection[str] = ()) -> None:
        """Replace the functions and classes that a module defines by those of the same name of another one.

        Names in `skip` stay.
        """
        package = theirs.__name__.rpartition(".")[0] or theirs.__name__
        for name, value in [*vars(theirs).items()]:
            if name in skip or name.startswith("__") or not callable(value):
                continue
            home = getattr(value, "__module__", None) or ""
            if not home.startswith((theirs.__name__, package, "torch._C")):
                continue
            new = vars(ours).get(name, _ABSENT)
            if new is not _ABSENT and callable(new):
                self.replace(theirs, name, new)

    def restore(self) -> None:
        """Restore all attributes, the newest first."""
        while self._undo:
            owner, name, old = self._undo.pop()
            if old is _ABSENT:
                if name in vars(owner):
                    delattr(owner, name)
            else:
                setattr(owner, name, old)
