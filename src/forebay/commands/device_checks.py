"""The checks of `forebay doctor` that use each device: which devices there are, the work on one, and remedies."""

from __future__ import annotations

import json

from forebay._base.byte_sizes import MIB
from forebay.commands.checks import Check, expect

__all__ = ["FIND_DEVICES", "PREFIX", "device_check", "print_devices"]

PREFIX = "device "  # of the names of these checks
FIND_DEVICES = f"from {__name__} import print_devices; print_devices()"  # a program

_FULL = "its memory is in use: end the processes that use it, which its vendor's tool lists"
_REMEDIES = {  # by a part of the message; the first one that applies
    "OutOfMemory": _FULL,
    "out of memory": _FULL,
    "not finished after": "its driver does not respond: look at the system's log, and restart the machine",
    "the data changed": "its memory or its connection corrupts data: do not use it, and test it with its vendor's tool",
}
_OTHERWISE = (
    "look at the system's log and at its vendor's tool, such as nvidia-smi. Another process can show whether the "
    "device or forebay is the cause; `forebay doctor --no-devices` leaves the devices out"
)


def print_devices() -> None:
    """Print the devices that are not emulated, and the reasons for missing kinds and sensors, as JSON.

    Opens no device.
    """
    from forebay import backends
    from forebay._base.device_spec import Device, canonical
    from forebay.commands.info import missing
    from forebay.observe.telemetry import nvml
    from forebay.spi import Emulates

    names = [
        str(canonical(Device(kind, index)))
        for kind, driver in backends.drivers().items()
        if not isinstance(driver, Emulates)
        for index in range(driver.count())
    ]
    reasons = missing() | ({"sensors": reason} if (reason := nvml.why_not()) else {})
    print(json.dumps({"devices": names, "missing": reasons}))


def device_check(device: str) -> Check:
    """Return the check that works on a device."""
    return Check(f"{PREFIX}{device}", lambda: work_on(device), remedy_for)


def work_on(device: str) -> str:
    """Allocate memory, copy to the device and back, compare, wait for an event, and free everything."""
    import numpy as np

    import forebay
    from forebay import memory
    from forebay._base.byte_sizes import format_bytes
    from forebay.runtime.devices.current import opened_for

    props = opened_for(device).port.props
    if props.emulated:
        return f"not used, as {props.name} is emulated"
    values = np.random.default_rng(0).integers(0, 256, MIB, np.uint8)
    there = forebay.empty(values.size, dtype=forebay.uint8, device=device).copy_(values)
    event = forebay.Event(device)
    event.record(forebay.current_stream(device))
    event.synchronize()
    expect(event.query(), "an event is not reached although the program has waited for it")
    back = forebay.empty(values.size, dtype=forebay.uint8).copy_(there)
    expect(np.array_equal(back.numpy(), values), "the data changed on the way to the device and back")
    del there, back
    memory.empty_cache(device)
    left = memory.memory_allocated(device)
    expect(not left, f"{left} bytes remain allocated")
    return f"{props.name}: {format_bytes(MIB)} copied there and back, an event reached, memory freed"


def remedy_for(message: str) -> str:
    """Return what to do about a device on which the work fails with a message."""
    return next((remedy for part, remedy in _REMEDIES.items() if part in message), _OTHERWISE)
