"""Registrations of kernels in PyTorch's dispatcher, which last until they are closed, also at the exit of Python.

# Note [Registrations outlive exit handlers]
An exit handler or a destructor of the program may use tensors after PyTorch's exit handlers and after the end of this
module. PyTorch removes the kernels of a registration by a finalizer at exit, or when the object is deleted, and an
operator would then find none. So the finalizer is switched off, and the list of registrations is never deleted:
PyTorch's dispatcher releases the kernels with the process. Rejected: another exit handler, as those of the
program may run later.
Test: tests/interop/torch/devices/test_ended_tensors.py::test_exit_handlers_and_destructors_of_the_program_use_tensors

# Note [Kept choices of kernels]
While AOTAutograd traces, Python chooses the kernel of each call, and an operator keeps the choice for the process. A
kept choice of a kernel that has been removed is a jump to address 0, and one that is older than a registration passes
over its kernels. So operators choose again after each change.
Test: tests/interop/torch/compile/test_dynamo.py::test_kernels_are_chosen_again_after_the_emulation
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import torch

__all__ = ["choose_again", "close_library", "open_library"]

_open: list[Any] = []  # never deleted: Note [Registrations outlive exit handlers]
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
    choose_again()


def choose_again() -> None:
    """Let operators choose kernels again: Note [Kept choices of kernels]."""
    for operator in torch._ops.get_cached_ops():
        operator._dispatch_cache.clear()
