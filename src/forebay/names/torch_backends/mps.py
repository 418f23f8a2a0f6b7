"""`torch.backends.mps`: whether there is an MPS device."""

from __future__ import annotations

from forebay.runtime.devices.open_device import device_count

__all__ = ["is_available", "is_built"]


def is_available() -> bool:
    """Return True while there is an MPS device."""
    return device_count("mps") > 0


def is_built() -> bool:
    """Return the same: forebay has MPS devices while it emulates them."""
    return is_available()
