"""cuDNN while CUDA devices are emulated: PyTorch works as a build without it, also if it has it."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.interop.torch.program_versions import CUDNN_VERSION

__all__ = ["replace_cudnn"]


def replace_cudnn(names: NameReplacements, undo: ExitStack) -> None:
    """Disable cuDNN, which PyTorch's C++ code would ask for the properties of a real GPU.

    What a program reads and sets as `torch.backends.cudnn.enabled` is only noted: batch normalization asks it whether
    its memory is that of cuDNN. `undo` receives the call that restores the setting.
    """
    names.replace(torch.backends.cudnn, "is_acceptable", _is_acceptable)
    if not torch._C._has_cudnn:
        names.replace(torch.backends.cudnn, "is_available", _is_available)
        names.replace(torch.backends.cudnn, "version", _version)
    wanted = [True]

    def get(*_: object) -> bool:
        return wanted[0]

    def keep(*values: object) -> None:
        wanted[0] = bool(values[-1])

    if torch._C._has_cudnn:
        set_enabled = torch._C._set_cudnn_enabled
        undo.callback(set_enabled, torch._C._get_cudnn_enabled())
        set_enabled(False)
    names.replace(torch._C, "_get_cudnn_enabled", get)
    names.replace(torch._C, "_set_cudnn_enabled", keep)
    names.replace(type(torch.backends.cudnn), "enabled", property(get, keep))


def _is_available() -> bool:
    """Return True: a build with CUDA has cuDNN, whose memory is that of the emulated devices."""
    return True


def _version() -> int:
    """Return the version of cuDNN in PyTorch's wheels with CUDA."""
    return CUDNN_VERSION


def _is_acceptable(tensor: torch.Tensor) -> bool:
    """Return False: recurrent networks run cell by cell, and a build without cuDNN must not warn of it."""
    return False
