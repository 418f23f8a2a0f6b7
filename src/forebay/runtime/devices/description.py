"""The properties of a device that can be read without opening it, for its display in a notebook."""

from __future__ import annotations

from forebay import backends
from forebay._base.byte_sizes import format_bytes
from forebay._base.config import UNLIMITED
from forebay._base.device_spec import Device, canonical
from forebay.runtime.allocator.metrics import ALLOCATED_BYTES, RESERVED_BYTES
from forebay.runtime.devices import open_device
from forebay.runtime.devices.current import current_index
from forebay.spi import Describes

__all__ = ["describe"]


def describe(device: Device) -> list[tuple[str, str]]:
    """Return names and values: hardware, memory, and what is allocated if the device is open. Does not open it."""
    index = current_index(device.kind) if device.index is None else device.index
    driver = backends.driver(device.kind)
    count = driver.count()
    if index not in range(count):
        return [("state", driver.why_not() or f"does not exist; devices of this kind: {count}")]
    opened = open_device.get_open_device(canonical(Device(device.kind, index)))
    found: list[tuple[str, str]] = []
    if opened is not None:
        props, capacity = opened.port.props, opened.port.memory_info()[1]
    elif isinstance(driver, Describes):
        props = driver.describe(index)
        capacity = props.total_bytes
    else:
        return [("state", "not open")]
    found += [("name", props.name), ("memory", "unlimited" if capacity >= UNLIMITED else format_bytes(capacity))]
    if opened is None:
        return [*found, ("state", "not open")]
    if opened.pluggable is not None:
        return [*found, ("state", f"uses {opened.pluggable}")]
    used = (format_bytes(opened.allocator.current(n)) for n in (ALLOCATED_BYTES, RESERVED_BYTES))
    return [*found, *zip(("allocated", "reserved"), used, strict=True)]
