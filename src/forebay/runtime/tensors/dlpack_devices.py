"""Devices whose memory this library and others can use, by the numbers of DLPack."""

from __future__ import annotations

from typing import Final

from forebay import backends
from forebay._base.device_spec import Device
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import OpenDevice, device_count, open_devices

__all__ = ["CPU_TYPE", "CUDA_TYPE", "opened_for_type"]

CPU_TYPE: Final = 1  # DLDeviceType, as the next
CUDA_TYPE: Final = 2
_KINDS = {CUDA_TYPE: "cuda"}  # where no device of the type is open


def opened_for_type(number: int, index: int | None) -> OpenDevice:
    """Return the device that can use memory of a DLDeviceType and an index, opened; the current one for None.

    Raises BufferError if no device can use such memory, and DeviceError for an index that does not exist.
    """
    kinds = (opened.kind for opened in open_devices().devices if opened.port.props.dlpack_type == number)
    kind = next(kinds, _KINDS.get(number))
    if kind is None:
        raise BufferError(f"Unsupported device_type: {number}")
    if not device_count(kind):
        raise BufferError(f"the memory cannot be used: {backends.why_not(kind)}")
    opened = current.opened_for(Device(kind, index))
    if opened.port.props.dlpack_type != number:
        reason = "is emulated" if opened.port.props.emulated else "shares no memory"
        raise BufferError(f"the memory of other libraries' devices cannot be used: {opened.device} {reason}")
    return opened
