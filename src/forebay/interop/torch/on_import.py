"""Import hook that lets PyTorch use emulated devices as soon as a program has imported it.

This file imports the standard library only: `startup/sitecustomize.py` loads it by its path in each process that the
program starts, before forebay is imported, and most of them never import PyTorch.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

__all__ = ["VARIABLE", "install", "set_environment", "uninstall"]

VARIABLE = "FOREBAY_TORCH"  # "compute" or "shapes": PyTorch of this process and of its children uses emulated devices
_STARTUP = str(Path(__file__).with_name("startup"))


class _PatchingLoader(Loader):
    """The loader of PyTorch, and what follows its import."""

    def __init__(self, loader: Loader, after: Callable[[], None]) -> None:
        self._loader, self._after = loader, after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # what programs and importlib.resources see
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._after()

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)


class _Finder(MetaPathFinder):
    """Finds PyTorch with the other finders."""

    def __init__(self, after: Callable[[], None]) -> None:
        self._after = after
        self._searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None  # noqa: ARG002 -- the interface
    ) -> ModuleSpec | None:  # fmt: skip
        if name != "torch" or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _PatchingLoader(spec.loader, self._after)
        return spec


def install(after: Callable[[], None] | None = None) -> None:
    """Call a function after the import of PyTorch, at once if it is imported already. By default, patch it."""
    after = after or _patch
    uninstall()
    if "torch" in sys.modules:
        after()
    else:
        sys.meta_path.insert(0, _Finder(after))


def uninstall() -> None:
    """Remove the hook. PyTorch that was imported stays as it is."""
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, _Finder)]


def set_environment(mode: str) -> None:
    """Let the Python processes that this one starts install the hook, too."""
    os.environ[VARIABLE] = mode
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if _STARTUP not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([_STARTUP, *filter(None, paths)])


def _patch() -> None:
    from forebay.interop.torch.session import TorchSession

    TorchSession(os.environ.get(VARIABLE, "compute")).start()
