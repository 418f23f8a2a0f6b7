"""Names of PyTorch by which values of large tensors of the host are recorded or read, if none are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices import host_values, values
from forebay.interop.torch.devices.python_names import NameReplacements

__all__ = ["replace_host_methods"]

_READING = ("numpy", "tolist", "__dlpack__", "share_memory_")


def replace_host_methods(names: NameReplacements) -> None:
    """Replace them: Note [Values of the host without memory]."""
    if values.is_computed() or not hasattr(torch.library, "get_kernel"):
        return
    names.replace(torch.nn.Parameter, "__new__", staticmethod(_noting_parameters(torch.nn.Parameter.__new__)))
    for name in _READING:
        names.replace(torch.Tensor, name, _reading(name, getattr(torch.Tensor, name)))


def _noting_parameters(create: Callable[..., Any]) -> Callable[..., Any]:
    def new(cls: type, *args: Any, **keywords: Any) -> Any:
        made: Any = create(cls, *args, **keywords)
        if type(made) is cls:
            host_values.note_parameter(made)
        return made

    return new


def _reading(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def read(self: torch.Tensor, *args: Any, **keywords: Any) -> Any:
        if host_values.any_deferred() and self.device.type == "cpu" and host_values.reads_as_zeros(self):
            host_values.make_real(self, name)
        return original(self, *args, **keywords)

    read.__name__, read.__doc__ = name, original.__doc__
    return read
