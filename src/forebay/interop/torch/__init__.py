"""Integration with PyTorch programs. Imports torch only when a function needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.interop.torch.allocator import use_allocator
from forebay.interop.torch.oom_recorder import OomRecorder, record_oom

if TYPE_CHECKING:
    from forebay.interop.torch.devices.patching import Patch, is_patched, patch
    from forebay.interop.torch.fit import FitResult, FitTable, sweep, will_it_fit

__all__ = [
    "FitResult",
    "FitTable",
    "OomRecorder",
    "Patch",
    "is_patched",
    "patch",
    "record_oom",
    "sweep",
    "use_allocator",
    "will_it_fit",
]

_LAZY = {  # by name: the module
    **dict.fromkeys(("Patch", "is_patched", "patch"), "devices.patching"),  # which imports torch
    **dict.fromkeys(("FitResult", "FitTable", "sweep", "will_it_fit"), "fit"),
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
