"""The current MTIA device, and device properties."""

from __future__ import annotations

from typing import Any, ClassVar

from forebay._base.device_spec import DeviceLike
from forebay.errors import Unsupported
from forebay.mtia._kind import MTIA
from forebay.names.devices import DeviceContext, DeviceFunctions
from forebay.names.kind import DeviceKind
from forebay.spi import DeviceProps

__all__ = [
    "_exchange_device",
    "_maybe_exchange_device",
    "device",
    "get_device_capability",
    "get_device_properties",
    "is_bf16_supported",
    "set_device",
]

_DEVICES = DeviceFunctions(MTIA)
_maybe_exchange_device = _DEVICES.exchange_device


class device(DeviceContext):  # noqa: N801 -- PyTorch's name
    """Context manager that makes a device current and restores the previous device on exit.

    As `torch.mtia.device`. Entering initialises MTIA but does not open a device.

    Parameters
    ----------
    device : device or str or int or None
        The device. None and a negative index change nothing.

    Raises
    ------
    ValueError
        If `device` is not an MTIA device.
    DeviceError
        On entry, if the device does not exist.
    """

    kind: ClassVar[DeviceKind] = MTIA


# Written by tools/write_names.py from tools/names/devices.toml: edit the table, not these lines.


def get_device_properties(device: DeviceLike | None = None) -> dict[str, Any]:
    """Return the properties of a device.

    As `torch.mtia.get_device_properties`. Initialises MTIA but does not open a device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    dict
        `name`, `total_memory` in bytes, and the driver's `DeviceProps.details`.

    Raises
    ------
    DeviceError
        If the device does not exist.

    Examples
    --------
    >>> import forebay, forebay.mtia as mtia
    >>> with forebay.emulate("mtia"):
    ...     mtia.get_device_properties()["total_memory"] >> 30
    128
    """
    props = _describe(device, "getDeviceProperties")
    return {**props.details, "name": props.name, "total_memory": props.total_bytes}


def set_device(device: DeviceLike) -> None:
    """Make a device this thread's current one.

    As `torch.mtia.set_device`. Initialises MTIA but does not open a device.

    Parameters
    ----------
    device : device or str or int
        The device; a negative index changes nothing.

    Raises
    ------
    ValueError
        If `device` is not an MTIA device or has no index.
    DeviceError
        If the device does not exist.
    """
    index = MTIA.index(device)
    if index >= 0:
        MTIA.require_backend("setCurrentDevice")
        MTIA.exchange(index)


def is_bf16_supported(including_emulation: bool = True) -> bool:  # noqa: ARG001 -- PyTorch's
    """Return True: every MTIA device supports bfloat16.

    As `torch.mtia.is_bf16_supported`. Does not initialise MTIA.

    Parameters
    ----------
    including_emulation : bool, default True
        Ignored.
    """
    return True


# End of the written lines.


def _exchange_device(device: int) -> int:
    """Make a device current and return the index of the previous one; a negative index only returns -1."""
    if isinstance(device, int) and device >= 0:
        MTIA.require_backend("exchangeDevice")
    return _DEVICES.exchange_device(device)


def get_device_capability(device: DeviceLike | None = None) -> tuple[int, int]:
    """Return the capability of a device.

    As `torch.mtia.get_device_capability`. Initialises MTIA but does not open a device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    major : int
        The major version.
    minor : int
        The minor version.

    Raises
    ------
    Unsupported
        If the driver does not report a capability.
    DeviceError
        If the device does not exist.
    """
    props = _describe(device, "getDeviceCapability")
    try:
        return props.details["major"], props.details["minor"]
    except KeyError:
        message = (
            f"the driver of {props.name} does not report a capability: `DeviceProps.details` has no major or minor"
        )
        raise Unsupported(message, ability="Describes") from None


def _describe(device: Any, hook: str) -> DeviceProps:
    index = MTIA.index(device, optional=True)
    MTIA.require_backend(hook)
    return MTIA.describe(index)
