"""Functions of `torch._utils` for programs that support several kinds of device."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from forebay._base.device_spec import Device
from forebay.runtime.devices import current, open_device

__all__ = [
    "_get_available_device_type",
    "_get_device_index",
    "_get_device_module",
    "_register_device_module",
    "get_device_module",
]

_MODULES = ("cuda", "mps", "mtia", "xpu")
_registered: dict[str, ModuleType] = {}  # by kind


def _get_available_device_type() -> str | None:
    """Return the first kind of accelerator that has a device, or None. (`torch._utils._get_available_device_type`)"""
    return next((kind for kind in current.PREFERRED if open_device.device_count(kind)), None)


def _get_device_module(device_type: str) -> ModuleType:
    """Return the module of a kind of device. (`torch._utils._get_device_module`)

    Raises RuntimeError if there is none.
    """
    if device_type in _registered:
        return _registered[device_type]
    if device_type not in _MODULES:
        text = f"Device '{device_type}' does not have a corresponding module registered as 'forebay.{device_type}'."
        raise RuntimeError(text)
    return import_module(f"forebay.{device_type}")


def _register_device_module(device_type: Device | str | int, module: ModuleType) -> None:
    """Make a module the one of a kind of device, as for a vendor's backend. (`torch._register_device_module`)

    It can be imported as `forebay.KIND` afterwards. Raises RuntimeError if the kind has a module.
    """
    kind = Device(device_type).type
    package = sys.modules[__package__]
    if hasattr(package, kind):
        existing = getattr(package, kind)
        raise RuntimeError(f"The runtime module of '{kind}' has already been registered with '{existing}'")
    _registered[kind] = module
    setattr(package, kind, module)
    sys.modules[f"{__package__}.{kind}"] = module


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Return the index of a device of any kind; an int is returned unchanged. (`torch._utils._get_device_index`)

    With `optional`, the current device's if it has no index. With `allow_cpu`, the CPU's index is -1. Raises ValueError
    for other arguments.
    """
    if isinstance(device, int):
        return device
    parsed = Device(device) if isinstance(device, str) else device
    if isinstance(parsed, Device):
        if parsed.kind == "cpu":
            if allow_cpu:
                return -1
            raise ValueError(f"Expected a non cpu device, but got: {parsed}")
        if parsed.index is not None:
            return parsed.index
    if optional:
        from forebay import accelerator  # at its first use, as every module of a kind

        return accelerator.current_device_index()
    raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")


def get_device_module(device: Device | str | None = None) -> ModuleType:
    """Return the module of a device, such as `forebay.cuda`.

    As `torch.get_device_module`.

    Parameters
    ----------
    device : device or str, optional
        The device; the current accelerator by default.

    Raises
    ------
    RuntimeError
        If the kind of device has no module.
    """
    if device is None:
        from forebay import accelerator

        found = accelerator.current_accelerator()
        return _get_device_module("cpu" if found is None else found.type)
    return _get_device_module((device if isinstance(device, Device) else Device(device)).type)
