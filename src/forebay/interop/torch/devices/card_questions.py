"""Questions of a program about its card, which other cards may answer otherwise: Note [Runs shared by cards]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from types import ModuleType
from typing import Any

import torch
import torch.cuda
import torch.cuda.memory

from forebay.cuda.devices import _CudaDeviceProperties
from forebay.interop.torch.devices.other_cards import ask, differ, read_statistics
from forebay.interop.torch.devices.python_names import NameReplacements

__all__ = ["note_questions"]

_CAPABILITY = ("major", "minor")
_FREE_MEMORY = ("mem_get_info", "get_memory_info", "device_memory_used", "memory_usage", "_cuda_getMemoryInfo")
_ALL_DIFFER = (  # sensors, and settings of the allocator that depend on the card, or after which no replay is exact
    "utilization", "temperature", "power_draw", "clock_rate", "list_gpu_processes", "set_per_process_memory_fraction",
    "change_current_allocator", "_record_memory_history", "_cuda_setMemoryFraction",
    "_cuda_record_memory_history", "_cuda_recordMemoryHistory",
)  # fmt: skip
_STATISTICS = ("allocated", "cached", "reserved", "stats", "summary", "snapshot", "Stats", "Snapshot")
_NO_STATISTICS = ("reset_", "_cuda_reset")
_FIELDS = frozenset(each.name for each in fields(_CudaDeviceProperties)) | {"gcnArchName", "uuid"}


def note_questions(names: NameReplacements) -> None:
    """Let the functions of PyTorch that answer for a card note what the program asks."""
    accelerator = [torch.accelerator, torch.accelerator.memory] if hasattr(torch.accelerator, "memory") else []
    for module in (torch.cuda, torch.cuda.memory, *accelerator, torch._C):
        for name, function in [*vars(module).items()]:
            note = _note_of(name, module)
            if note is not None and callable(function) and not isinstance(function, type):
                names.replace(module, name, _noting(function, note))
    names.replace(torch.cuda, "get_device_properties", _with_fields(torch.cuda.get_device_properties))


def _note_of(name: str, module: ModuleType) -> Callable[[], None] | None:
    """Return what notes a call of a function, or None."""
    if "llocatorSettings" in name or "llocator_settings" in name:
        return differ
    if module is torch._C and not name.startswith("_cuda_"):
        return None
    if name in _FREE_MEMORY:
        return _note_free_memory
    if name in _ALL_DIFFER:
        return differ
    if name in ("get_device_capability", "_cuda_getDeviceCapability"):
        return lambda: ask(_CAPABILITY)
    if name in ("is_bf16_supported", "is_tf32_supported"):  # the first one allocates a tensor on older cards
        return lambda: ask(("major",), lambda major: major >= 8)
    if name == "get_device_name":
        return lambda: ask(("name",))
    if any(word in name for word in _STATISTICS) and not name.startswith(_NO_STATISTICS):
        return read_statistics
    return None


def _note_free_memory() -> None:
    ask(("total_memory", "name"))  # the memory outside the allocator depends on the card
    read_statistics()


def _noting(function: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        note()
        return function(*args, **keywords)

    return call


def _with_fields(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose results note which of their fields are read."""

    @wraps(function)
    def get_device_properties(*args: Any, **keywords: Any) -> Any:
        found = function(*args, **keywords)
        if type(found) is not _CudaDeviceProperties:
            return found
        made = object.__new__(_AskedProperties)
        for each in fields(_CudaDeviceProperties):
            object.__setattr__(made, each.name, getattr(found, each.name))
        return made

    return get_device_properties


class _AskedProperties(_CudaDeviceProperties):
    """Properties that note which of them are read."""

    def __getattribute__(self, name: str) -> Any:
        if name in _FIELDS:
            ask((name,))
        return super().__getattribute__(name)


_AskedProperties.__name__ = _AskedProperties.__qualname__ = _CudaDeviceProperties.__name__
