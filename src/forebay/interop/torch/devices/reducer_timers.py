"""The timer of `DistributedDataParallel`'s reducer while CUDA devices are emulated: that of the CPU.

The reducer is C++ code, which measures the passes of some steps with a timer for the type of its device. PyTorch's CUDA
build registers one that records CUDA events, which need a driver. The registry is a hash table of the C++ library that
PyTorch's Linux wheels use, libstdc++, so its entries are found without a compiler.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from pathlib import Path

import torch

__all__ = ["has_reducer_timer", "replace_reducer_timers"]

_REGISTRY = "_ZN4c10d13TimerRegistryEv"  # c10d::TimerRegistry()
_CPU, _CUDA = 0, 1  # c10::DeviceType
_MOST_ENTRIES = 128  # more than there are types of devices: the table is another structure
_Creator = ctypes.c_void_p * 4  # std::function: two words of the function, its manager, its invoker


class _Entry(ctypes.Structure):
    """An entry of `std::unordered_map<c10::DeviceType, std::function<...>>`."""


_Entry._fields_ = [("next", ctypes.POINTER(_Entry)), ("type", ctypes.c_int8), ("creator", _Creator)]


class _Table(ctypes.Structure):
    """That map, with which a `c10::Registry` begins."""

    _fields_ = (
        ("buckets", ctypes.c_void_p),
        ("bucket_count", ctypes.c_size_t),
        ("first", ctypes.POINTER(_Entry)),
        ("count", ctypes.c_size_t),
    )


def replace_reducer_timers(undo: ExitStack) -> None:
    """Let reducers for CUDA devices use the timer of the CPU, if this build of PyTorch has one for CUDA.

    `undo` receives the call that restores the registry.
    """
    creators = _creators()
    if _CPU in creators and _CUDA in creators:
        undo.callback(ctypes.memmove, creators[_CUDA], bytes(creators[_CUDA]), ctypes.sizeof(_Creator))
        ctypes.memmove(creators[_CUDA], creators[_CPU], ctypes.sizeof(_Creator))


def has_reducer_timer() -> bool:
    """Return True if reducers for CUDA devices have a timer."""
    return _CUDA in _creators()


def _creators() -> dict[int, ctypes.Array[ctypes.c_void_p]]:
    """Return the functions that create timers, by type of device; none if this build has no such registry."""
    try:
        find = getattr(ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so")), _REGISTRY)
    except (OSError, AttributeError):
        return {}
    find.restype = ctypes.POINTER(_Table)
    table = find().contents
    found: dict[int, ctypes.Array[ctypes.c_void_p]] = {}
    if not 0 < table.count < min(_MOST_ENTRIES, table.bucket_count + 1):
        return {}
    entry = table.first
    while entry and len(found) < table.count:
        found[entry.contents.type] = entry.contents.creator
        entry = entry.contents.next
    is_complete = len(found) == table.count and not entry
    return found if is_complete and all(all(each[2:]) for each in found.values()) else {}
