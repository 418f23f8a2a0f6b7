"""Memory of a training loop: a context manager, and the callbacks of transformers, Lightning and accelerate.

On a GPU they need PyTorch only; under `forebay run --emulate` and `forebay fit` they watch the emulated devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.interop.torch.training.memory_watch import CardFit, MemoryWatch, StepPeak

if TYPE_CHECKING:
    from forebay.interop.torch.training.accelerate_hook import AccelerateMemory
    from forebay.interop.torch.training.lightning_callback import LightningMemory
    from forebay.interop.torch.training.transformers_callback import TransformersMemory

__all__ = ["AccelerateMemory", "CardFit", "LightningMemory", "MemoryWatch", "StepPeak", "TransformersMemory"]

_LAZY = {  # by name: the module, which imports the library
    "AccelerateMemory": "accelerate_hook",
    "LightningMemory": "lightning_callback",
    "TransformersMemory": "transformers_callback",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
