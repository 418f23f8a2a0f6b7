"""NVIDIA's library CUPTI, which reports when copies, fills and kernels ran."""

from __future__ import annotations

import ctypes
from functools import cache

from forebay.backends.nvidia._stream import CUPTI_FUNCTIONS, load_cupti

__all__ = ["has_cupti"]

_SONAME = "libcupti.so.13"


@cache
def has_cupti() -> bool:
    """Return True if CUPTI is installed: it is loaded then, but costs nothing before a log is started."""
    library = _load()
    if library is None:
        return False
    try:
        addresses = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in CUPTI_FUNCTIONS}
    except AttributeError:  # it lacks a function
        return False
    load_cupti(addresses)
    return True


def _load() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(_SONAME)  # loaded by another library, or in the loader's folders
    except OSError:
        pass
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib  # a part of cuda-bindings; knows packages and the toolkit

        return ctypes.CDLL(load_nvidia_dynamic_lib("cupti").abs_path)
    except Exception:  # noqa: BLE001 - errors of several types: not found, not known to an old version
        return None
