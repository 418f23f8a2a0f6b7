"""PyTorch's callbacks for streams, events and memory, which its sanitizer registers: forebay's observer calls them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch
import torch.cuda._gpu_trace as theirs

import forebay.cuda._gpu_trace as ours
from forebay.interop.torch.devices._storage_owners import set_trace
from forebay.interop.torch.devices.python_names import NameReplacements

__all__ = ["replace_gpu_trace"]

_REGISTRIES = [name for name, each in vars(ours).items() if isinstance(each, ours.CallbackRegistry)]


def replace_gpu_trace(names: NameReplacements, undo: ExitStack) -> None:
    """Let `torch._C._activate_gpu_trace` connect PyTorch's callbacks, until `undo` is closed."""
    connected: list[tuple[ours.CallbackRegistry, Callable[..., object]]] = []

    def activate() -> None:
        if not connected:
            for name in _REGISTRIES:
                registry, call = getattr(ours, name), getattr(theirs, name).fire_callbacks
                registry.add_callback(call)
                connected.append((registry, call))
            set_trace(
                theirs.MemoryAllocationCallbacks.fire_callbacks, theirs.MemoryDeallocationCallbacks.fire_callbacks
            )

    def disconnect() -> None:
        set_trace(None, None)
        for registry, call in connected:
            registry.callback_list.remove(call)

    undo.callback(disconnect)
    names.replace(torch._C, "_activate_gpu_trace", activate)
