"""Which of the accelerator's devices an argument means. (`torch.accelerator._utils`)"""

from __future__ import annotations

from typing import Any

from forebay.accelerator._kind import accelerator
from forebay.device_spec import Device

__all__ = ["_get_device_index", "_index_or_current"]


def _get_device_index(device: Any, optional: bool = False) -> int:
    """An int is itself, a device has an index, one without or None is the current one if that is `optional`.

    Raises ValueError for a device of another kind, and for what is no device.
    """
    kind = accelerator()
    named = Device(device) if isinstance(device, str) else device
    if isinstance(named, Device) and named.kind != kind.name:
        raise ValueError(f"{named.kind} doesn't match the current accelerator {kind.name}.")
    return kind.index(named, optional)


def _index_or_current(device: Any) -> int:
    """The same, for what takes -1 for the current device."""
    index = _get_device_index(device, optional=True)
    return accelerator().current_index() if index == -1 else index
