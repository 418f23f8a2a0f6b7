"""cuDNN while CUDA devices are emulated: PyTorch works as a build without it, also if it has it."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from forebay.interop.torch.devices.python_names import NameReplacements

__all__ = ["replace_cudnn"]


def replace_cudnn(names: NameReplacements, undo: ExitStack) -> None:
    """Disable cuDNN, which PyTorch's C++ code would ask for the properties of a real GPU.

    `torch.backends.cudnn.enabled` is False, and a program cannot set it. `undo` receives the call that restores the
    setting.
    """
    names.replace(torch.backends.cudnn, "is_acceptable", _is_acceptable)
    if not torch._C._has_cudnn:
        return
    set_enabled = torch._C._set_cudnn_enabled
    undo.callback(set_enabled, torch._C._get_cudnn_enabled())
    set_enabled(False)
    names.replace(torch._C, "_set_cudnn_enabled", _ignore)
    names.replace(type(torch.backends.cudnn), "enabled", property(_is_enabled, _ignore))


def _is_acceptable(tensor: torch.Tensor) -> bool:
    """Return False: recurrent networks run cell by cell, and a build without cuDNN must not warn of it."""
    return False


def _is_enabled(module: object) -> bool:
    return False


def _ignore(*_: object) -> None:
    pass
