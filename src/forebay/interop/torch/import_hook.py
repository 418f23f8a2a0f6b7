"""Import hook that calls a function after the import of a module.

This file imports the standard library only: `startup/sitecustomize.py` loads it by its path in each process that a
program under `forebay run --emulate` starts, before forebay is imported, and most of them never import PyTorch.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["ImportHook"]


@contextmanager
def _without_collection() -> Iterator[None]:
    """Collect no garbage during a large import: it makes objects that stay, and the search takes 0.1 s."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Loader(Loader):
    """The loader of a module, and what follows its import."""

    def __init__(self, loader: Loader, after: Callable[[ModuleType], object]) -> None:
        self._loader, self._after = loader, after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # what programs and importlib.resources see
        module.__loader__ = self._loader
        with _without_collection():
            self._loader.exec_module(module)
            self._after(module)

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)


class ImportHook(MetaPathFinder):
    """A finder that calls `after` with the module of the full name `name`, when that has been executed.

    `loader` makes the loader of the module from its own and from `after`.
    """

    def __init__(
        self, name: str, after: Callable[[ModuleType], object],
        loader: Callable[[Loader, Callable[[ModuleType], object]], Loader] = _Loader,
    ) -> None:  # fmt: skip
        self._name, self._after, self._make_loader = name, after, loader
        self._searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:  # fmt: skip
        """Return what the other finders find, with a loader that calls the function."""
        if name != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = self._make_loader(spec.loader, self._after)
        return spec

    def install(self) -> None:
        """Call the function for later imports."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Call the function no more. Calling this again does nothing."""
        if sys.meta_path is not None:  # else the interpreter exits
            sys.meta_path[:] = [each for each in sys.meta_path if each is not self]
