"""The kind of device that is the current accelerator."""

from __future__ import annotations

from functools import cache

from forebay.device_spec import NO_ACCELERATOR
from forebay.errors import ForebayError
from forebay.faces.kind import DeviceKind
from forebay.runtime.devices.current import accelerator_kind

__all__ = ["accelerator", "kind_named"]


def accelerator() -> DeviceKind:
    """Return the kind of this thread's current device, else the preferred one. Does not open a device.

    Raises ForebayError, with PyTorch's text, if there is no accelerator.
    """
    name = accelerator_kind()
    if name is None:
        raise ForebayError(NO_ACCELERATOR)
    return kind_named(name)


@cache
def kind_named(name: str) -> DeviceKind:
    """Return the object that all functions of this package share for a kind."""
    return DeviceKind(name)
