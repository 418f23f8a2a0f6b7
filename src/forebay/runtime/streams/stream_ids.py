"""Streams by PyTorch's three numbers: stream id, device index and device type."""

from __future__ import annotations

from typing import Any

from forebay._base.device_spec import Device
from forebay.backends.common.cuda_errors import INVALID_HANDLE, accelerator_error
from forebay.errors import ForebayError
from forebay.runtime.base.torch_types import kind_of_type
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import OpenDevice
from forebay.spi import Queue

__all__ = ["find_queue", "queue_of_numbers"]


def find_queue(opened: OpenDevice, stream_id: int) -> Queue:
    """Return the device's queue by PyTorch's stream id or the driver's handle. Raises DeviceError if there is none."""
    if not isinstance(stream_id, int):
        raise ForebayError(f"a stream id or handle must be an int, not {type(stream_id).__name__}")
    if stream_id == 0:
        return opened.default_queue
    pool = opened.stream_pool
    if pool is not None and pool.is_pool_id(stream_id):
        try:
            return pool.queue_with_id(stream_id)
        except ValueError as error:
            raise ForebayError(f"Unrecognized stream {stream_id} on device {opened.device}: {error}") from None
    found = opened.wrap_queue(stream_id)
    if found is None:
        note = f"{opened.device} has no stream {stream_id:#x}."
        raise accelerator_error(INVALID_HANDLE, kind=opened.device.kind, device=str(opened.device), note=note)
    return found


def queue_of_numbers(stream_id: Any, device_index: Any, device_type: Any) -> tuple[OpenDevice, Queue]:
    """Return the queue with these numbers and its device, which is opened.

    Raises TypeError, with PyTorch's texts, unless all three are ints.
    """
    numbers = {"stream_id": stream_id, "device_index": device_index, "device_type": device_type}
    given = [name for name, number in numbers.items() if number is not None]
    if len(given) < len(numbers):
        raise TypeError(f"Stream() got an unexpected keyword argument '{given[0]}'")
    for name, number in numbers.items():
        if number.__class__ is bool or not isinstance(number, int):
            raise TypeError(f"Stream(): argument '{name}' must be int, not {type(number).__name__}")
    opened = current.opened_for(Device(kind_of_type(device_type), None if device_index < 0 else device_index))
    return opened, find_queue(opened, stream_id)
