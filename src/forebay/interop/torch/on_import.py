"""Emulated devices for PyTorch as soon as a program has imported it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from forebay.interop.torch.import_hook import ImportHook

__all__ = ["VARIABLE", "install", "set_environment", "uninstall"]

VARIABLE = "FOREBAY_TORCH"  # "compute" or "shapes": PyTorch of this process and of its children uses emulated devices
_STARTUP = str(Path(__file__).with_name("startup"))

_hooks: list[ImportHook] = []  # that of PyTorch


def install(after: Callable[[], None] | None = None) -> None:
    """Call a function after the import of PyTorch, at once if it is imported already. By default, patch it."""
    call = after or _patch
    uninstall()
    if "torch" in sys.modules:
        call()
    else:
        hook = ImportHook("torch", lambda _: call())
        _hooks.append(hook)
        hook.install()


def uninstall() -> None:
    """Remove the hook. PyTorch that was imported stays as it is."""
    while _hooks:
        _hooks.pop().remove()


def set_environment(mode: str) -> None:
    """Let the Python processes that this one starts install the hook, too."""
    os.environ[VARIABLE] = mode
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if _STARTUP not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([_STARTUP, *filter(None, paths)])


def _patch() -> None:
    from forebay.interop.torch.session import TorchSession

    TorchSession(os.environ.get(VARIABLE, "compute")).start()
