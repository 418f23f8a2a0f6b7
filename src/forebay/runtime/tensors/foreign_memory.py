"""Tensors over device memory that belongs to another library, and the devices that can use it."""

from __future__ import annotations

from typing import Any

import numpy as np

from forebay import backends
from forebay.device_spec import Device
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import OpenDevice, device_count, open_devices
from forebay.runtime.memory.storage import Storage
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["opened_for_type", "tensor_over_memory"]

_LIMIT = 1 << 63
_KINDS = {2: "cuda"}  # by DLDeviceType: where no device of the type is open


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


def tensor_over_memory(
    opened: OpenDevice,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    owner: object,
) -> Tensor:
    """Return a tensor of the elements from `address` on, strides in bytes.

    The owner is kept alive until the work that is queued on the tensor has completed. Raises RuntimeError if there
    is no such memory.
    """
    if any(length < 0 for length in shape):
        least = min(shape)
        raise RuntimeError(f"Trying to create tensor with negative dimension {least}: {list(shape)}")
    if any(length >= _LIMIT for length in shape):
        raise RuntimeError(f"a tensor cannot have the shape {list(shape)}")
    if 0 in shape:
        return Tensor(Storage(opened, 0, 0, None), dtype, shape, strides)
    if not address:
        raise RuntimeError(f"elements of shape {list(shape)} have no address")
    spans = [(length - 1) * step for length, step in zip(shape, strides, strict=True)]
    before, after = -sum(span for span in spans if span < 0), sum(span for span in spans if span > 0) + dtype.itemsize
    if not (before < address and address + after <= _LIMIT):
        raise RuntimeError(
            f"Storage size calculation overflowed with sizes={list(shape)} and "
            f"strides={[step // dtype.itemsize for step in strides]}"
        )
    return Tensor(Storage(opened, before + after, address - before, owner), dtype, shape, strides, before)
