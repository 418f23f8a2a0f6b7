"""Registrations of kernels in PyTorch's dispatcher, which last until they are closed, also at the exit of Python."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import torch

__all__ = ["close_library", "open_library"]

# Never deleted: a destructor or an exit handler of the program may use tensors after PyTorch's exit handlers and after
# the end of this module. PyTorch's dispatcher releases the kernels with the process.
_open: list[Any] = []
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_open))


def open_library(space: str) -> torch.library.Library:
    """Return a registration for the operators of a namespace."""
    library = torch.library.Library(space, "IMPL")
    for finalizer in reversed([*getattr(weakref.finalize, "_registry", ())]):
        found = finalizer.peek()
        if found is not None and found[0] is library:
            finalizer.atexit = False  # it would remove the kernels before other exit handlers run
            break
    _open.append(library)
    return library


def close_library(library: torch.library.Library) -> None:
    """Remove the kernels of a registration."""
    library._destroy()
    _open[:] = [each for each in _open if each is not library]
