"""Memory of the MPS device, for `forebay.mps` to list. Questions open nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from forebay import backends
from forebay.errors import ForebayError, Unsupported
from forebay.faces.memory_statistics import MemoryStatistics
from forebay.mps._kind import MPS, check_there, check_there_for, device_if_open, open_device
from forebay.runtime.allocator.statistics import ALLOCATED_BYTES
from forebay.runtime.memory.storage import Storage, array_at
from forebay.runtime.tensors.creation import from_numpy
from forebay.runtime.tensors.tensor import Tensor
from forebay.spi import Emulates

__all__ = [
    "current_allocated_memory",
    "driver_allocated_memory",
    "empty_cache",
    "host_alias_storage",
    "recommended_max_memory",
    "set_per_process_memory_fraction",
]

empty_cache = MemoryStatistics(MPS).empty_cache

_BYTE = np.dtype(np.uint8)


def current_allocated_memory() -> int:
    """Bytes in tensors, of what the allocator handed out; its cache is not among them."""
    opened = device_if_open()
    if opened is None:
        check_there_for("getCurrentAllocatedMemory")
        return 0
    return opened.allocator.current(ALLOCATED_BYTES)


def driver_allocated_memory() -> int:
    """Bytes that the device lends to this process, the allocator's cache included."""
    opened = device_if_open()
    if opened is None:
        check_there_for("getDriverAllocatedMemory")
        return 0
    return opened.allocator.driver_allocated()


def recommended_max_memory() -> int:
    """Bytes that the system recommends one process to use at most. Initialises MPS.

    >>> import forebay, forebay.mps as mps
    >>> with forebay.emulate("mps", profile="apple_m3_max"):
    ...     mps.recommended_max_memory() >> 30
    96
    """
    opened = device_if_open()
    if opened is None:
        check_there_for("getRecommendedMaxMemory")
        props = MPS.describe()
    else:
        props = opened.port.props
    heaps = props.heaps
    return props.total_bytes if heaps is None else heaps.recommended


def set_per_process_memory_fraction(fraction: float) -> None:
    """Use at most this share of the recommended size, 0.0 to 2.0; 0.0 is without a limit. Opens the device.

    TypeError for what is no float, ValueError outside of 0 to 2.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if fraction < 0.0 or fraction > 2.0:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~2")
    open_device(None, "setMemoryFraction").allocator.set_memory_fraction(fraction)


def host_alias_storage(storage: Storage | Tensor) -> Tensor:
    """The same memory as bytes of the host, which keep it alive; nothing is copied, and nobody waits.

    Call `synchronize()` before the host touches it, and let what the host does be done before the device does.
    `storage` is a tensor or its `storage`. RuntimeError unless the allocator of an MPS device made it; Unsupported
    where the host cannot reach it. (`torch.mps._host_alias_storage`)
    """
    check_there()
    found: Any = storage.storage if isinstance(storage, Tensor) else storage
    if not isinstance(found, Storage):
        raise TypeError(f"expected a tensor or its storage, not {type(storage).__name__}")
    device = found.opened.device
    if device.kind != MPS.name or (found.nbytes and found.block is None):
        raise ForebayError(f"this memory, on {device}, is not of the MPS allocator")
    found.opened.check()
    driver, props = backends.driver(MPS.name), found.opened.port.props
    if isinstance(driver, Emulates) and driver.guard:
        raise Unsupported(f"the memory of {device} is guarded, the host must not touch it: emulate without guard")
    if props.heaps is None or not props.heaps.unified:
        raise Unsupported(f"the host does not reach the memory of {device}: copy it, with Tensor.cpu()")
    return from_numpy(array_at(found.address, (found.nbytes,), (1,), _BYTE, found))
