"""Ports of open devices that share memory and events with other processes."""

from __future__ import annotations

from functools import cache
from typing import cast

from forebay.errors import Unsupported
from forebay.runtime.devices.open_device import OpenDevice
from forebay.spi import Port, Shares

__all__ = ["can_share", "sharing_port"]


@cache
def can_share(port: type[Port]) -> bool:
    """Return True if the class implements Shares. Cached: a protocol check takes as long as a send."""
    return issubclass(port, Shares)


def sharing_port(opened: OpenDevice) -> Shares:
    """Return the device's port. Raise Unsupported if its memory cannot be shared."""
    port = opened.port
    if not can_share(type(port)):
        raise Unsupported(f"the memory of {opened.device} cannot be shared with other processes", ability="Shares")
    return cast("Shares", port)
