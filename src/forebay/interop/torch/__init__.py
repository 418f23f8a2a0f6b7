"""Integration with PyTorch programs. Imports torch only when a function needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.interop.torch.allocator import use_allocator
from forebay.interop.torch.oom_recorder import OomRecorder, record_oom

if TYPE_CHECKING:
    from forebay.interop.torch.patching import Patch, is_patched, patch

__all__ = ["OomRecorder", "Patch", "is_patched", "patch", "record_oom", "use_allocator"]

_LAZY = {"Patch": "patching", "is_patched": "patching", "patch": "patching"}  # by name: the module, which imports torch


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
