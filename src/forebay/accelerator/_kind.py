"""The kind of device that is the current accelerator."""

from __future__ import annotations

from functools import cache
from typing import Any

from forebay._base.device_spec import NO_ACCELERATOR
from forebay.errors import ForebayError
from forebay.names.kind import DeviceKind
from forebay.runtime.devices.current import accelerator_kind, current_device, local
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["accelerator", "kind_named", "known"]


def accelerator() -> DeviceKind:
    """Return the kind of this thread's current device, else the preferred one. Does not open a device.

    Raises ForebayError, with PyTorch's text, if there is no accelerator.
    """
    name = accelerator_kind()
    if name is None:
        raise ForebayError(NO_ACCELERATOR)
    return kind_named(name)


def known(device: Any) -> OpenDevice | None:
    """Return the accelerator that an argument denotes if it is open. None: the general path must decide."""
    current = local.state.device
    if current is not None and current.kind != "cpu":
        return kind_named(current.kind).known(device)
    name = accelerator_kind()
    opened = None if name is None else kind_named(name).known(device)
    if opened is not None:
        current_device()  # is not looked for again, as the kind is in use
    return opened


@cache
def kind_named(name: str) -> DeviceKind:
    """Return the object that all functions of this package share for a kind."""
    return DeviceKind(name)
