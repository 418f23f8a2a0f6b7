"""MTIA devices: which is current, and what they are."""

from __future__ import annotations

from typing import Any

from forebay.errors import Unsupported
from forebay.faces.devices import DeviceContext, Devices
from forebay.mtia._kind import MTIA
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

_DEVICES = Devices(MTIA)
_maybe_exchange_device = _DEVICES.exchange_device


class device(DeviceContext):  # noqa: N801 -- PyTorch's name
    """The device is current inside, the one before it afterwards; None and a negative index change nothing.

    Raises ValueError for what names no MTIA device, DeviceError on entering where there is none of that index.
    (`torch.mtia.device`)
    """

    kind = MTIA


def set_device(device: Any) -> None:
    """Make the device this thread's current one; a negative index changes nothing. (`torch.mtia.set_device`)

    Initialises MTIA, opens nothing.
    """
    index = MTIA.index(device)
    if index >= 0:
        MTIA.hook("setCurrentDevice")
        MTIA.exchange(index)


def _exchange_device(device: int) -> int:
    """Make the device current and give the index of the one before; of a negative one nothing comes but -1."""
    if isinstance(device, int) and device >= 0:
        MTIA.hook("exchangeDevice")
    return _DEVICES.exchange_device(device)


def get_device_properties(device: Any = None) -> dict[str, Any]:
    """What the device is, as its driver says: `name`, `total_memory` in bytes, and whatever else it tells.

    DeviceError for an index that is none. Initialises MTIA, opens nothing. (`torch.mtia.get_device_properties`)

    >>> import forebay, forebay.mtia as mtia
    >>> with forebay.emulate("mtia"):
    ...     mtia.get_device_properties()["total_memory"] >> 30
    128
    """
    props = _described(device, "getDeviceProperties")
    return {**props.details, "name": props.name, "total_memory": props.total_bytes}


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The major and the minor version of the device. (`torch.mtia.get_device_capability`)

    Unsupported where its driver tells none, DeviceError for an index that is none.
    """
    props = _described(device, "getDeviceCapability")
    try:
        return props.details["major"], props.details["minor"]
    except KeyError:
        message = (
            f"the driver of {props.name} does not tell its capability: `DeviceProps.details` has no major or minor"
        )
        raise Unsupported(message, ability="Describes") from None


def _described(device: Any, hook: str) -> DeviceProps:
    index = MTIA.index(device, optional=True)
    MTIA.hook(hook)
    return MTIA.describe(index)


def is_bf16_supported(including_emulation: bool = True) -> bool:  # noqa: ARG001 -- PyTorch's
    """True, of every MTIA device. (`torch.mtia.is_bf16_supported`)"""
    return True
