"""Device arguments of `torch.accelerator`. (`torch.accelerator._utils`)"""

from __future__ import annotations

from typing import Any

from forebay._base.device_spec import Device
from forebay.accelerator._kind import accelerator
from forebay.errors import ForebayError
from forebay.runtime.devices.current import accelerator_kind

__all__ = ["_get_device_index", "_index_or_current"]


def _get_device_index(device: Any, optional: bool = False) -> int:
    """Return the index that an argument means: an int is the index; None is the current device if `optional`.

    Raises ValueError for a device of another kind and for an invalid argument, ForebayError without an accelerator.
    """
    if isinstance(device, int):
        return int(device)  # True is 1
    device = Device(device) if isinstance(device, str) else device
    if isinstance(device, Device):
        if accelerator_kind() is None:
            raise ForebayError("Accelerator expected")
        if device.kind != accelerator().name:
            raise ValueError(f"{device.kind} doesn't match the current accelerator {accelerator().name}.")
    elif not optional and accelerator_kind() is None:
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")
    return accelerator().index(device, optional)


def _index_or_current(device: Any) -> int:
    """Return the same, with -1 for the current device."""
    index = _get_device_index(device, optional=True)
    return accelerator().current_index() if index == -1 else index
