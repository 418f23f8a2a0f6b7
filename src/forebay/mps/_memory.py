"""Memory functions of `forebay.mps`. Queries do not open a device."""

from __future__ import annotations

from typing import Final

import numpy as np

from forebay import backends
from forebay.errors import ForebayError, Unsupported
from forebay.mps._kind import MPS, check_available, get_open_device, open_device, require_backend
from forebay.names.memory_statistics import MemoryStatistics
from forebay.runtime.allocator.metrics import ALLOCATED_BYTES
from forebay.runtime.memory.storage import array_at
from forebay.runtime.tensors.creation import from_numpy
from forebay.runtime.tensors.tensor import Tensor
from forebay.runtime.tensors.untyped_storage import UntypedStorage
from forebay.spi import Emulates

__all__ = [
    "current_allocated_memory",
    "driver_allocated_memory",
    "empty_cache",
    "host_alias_storage",
    "recommended_max_memory",
    "set_per_process_memory_fraction",
]

empty_cache: Final = MemoryStatistics(MPS).empty_cache

_BYTE = np.dtype(np.uint8)


def current_allocated_memory() -> int:
    """Return the bytes of memory in use by live buffers, without cached memory; 0 before the device's first use.

    As `torch.mps.current_allocated_memory`. Does not initialise MPS.

    Raises
    ------
    ForebayError
        If there is no MPS device.
    """
    opened = get_open_device()
    if opened is None:
        require_backend("getCurrentAllocatedMemory")
        return 0
    return opened.allocator.current(ALLOCATED_BYTES)


def driver_allocated_memory() -> int:
    """Return the bytes that this process has reserved from the device, cached memory included.

    As `torch.mps.driver_allocated_memory`. Does not initialise MPS.

    Returns
    -------
    int
        Bytes; 0 before the device's first use.

    Raises
    ------
    ForebayError
        If there is no MPS device.
    """
    opened = get_open_device()
    if opened is None:
        require_backend("getDriverAllocatedMemory")
        return 0
    return opened.allocator.driver_allocated()


def recommended_max_memory() -> int:
    """Return the maximum number of bytes that the system recommends for one process.

    As `torch.mps.recommended_max_memory`. Initialises MPS but does not open a device.

    Raises
    ------
    ForebayError
        If there is no MPS device.

    Examples
    --------
    >>> import forebay, forebay.mps as mps
    >>> with forebay.emulate("mps", profile="apple_m3_max"):
    ...     mps.recommended_max_memory() >> 30
    96
    """
    opened = get_open_device()
    if opened is None:
        require_backend("getRecommendedMaxMemory")
        props = MPS.describe()
    else:
        props = opened.port.props
    heaps = props.heaps
    return props.total_bytes if heaps is None else heaps.recommended


def set_per_process_memory_fraction(fraction: float) -> None:
    """Limit allocated memory to a fraction of the recommended maximum.

    As `torch.mps.set_per_process_memory_fraction`. Opens the device.

    Parameters
    ----------
    fraction : float
        0.0 to 2.0; 0.0 removes the limit.

    Raises
    ------
    TypeError
        If `fraction` is not a float.
    ValueError
        If `fraction` is outside 0.0 to 2.0.
    ForebayError
        If there is no MPS device or `fraction` is NaN.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if fraction < 0.0 or fraction > 2.0:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~2")
    open_device(None, "setMemoryFraction").allocator.set_memory_fraction(fraction)


def host_alias_storage(storage: UntypedStorage | Tensor) -> UntypedStorage | Tensor:
    """Return a CPU storage that shares the memory of an MPS storage and keeps it alive.

    As `torch.mps._host_alias_storage`. Copies nothing and does not synchronise: call `synchronize()` before the host
    accesses the memory, and finish host access before the device uses the memory again.

    Parameters
    ----------
    storage : UntypedStorage or Tensor
        The storage of a tensor, or the tensor.

    Returns
    -------
    UntypedStorage or Tensor
        A storage on the CPU device; for a tensor, a tensor of uint8.

    Raises
    ------
    ForebayError
        If the memory was not allocated by an MPS device.
    Unsupported
        If the host cannot access the memory.
    TypeError
        If `storage` is neither a storage nor a tensor.
    """
    check_available()
    if not isinstance(storage, Tensor | UntypedStorage):
        raise TypeError(f"expected a tensor or its untyped storage, not {type(storage).__name__}")
    found = (storage if isinstance(storage, Tensor) else storage.elements).raw_storage
    device = found.opened.device
    if device.kind != MPS.name or (found.nbytes and found.block is None):
        raise ForebayError(f"memory on {device} was not allocated by the MPS allocator")
    found.opened.check()
    driver, props = backends.driver(MPS.name), found.opened.port.props
    if isinstance(driver, Emulates) and driver.guard:
        raise Unsupported(f"the host cannot access guarded memory of {device}: emulate without guard")
    if props.heaps is None or not props.heaps.unified:
        raise Unsupported(f"the host cannot access memory of {device}: copy it with Tensor.cpu()")
    alias = from_numpy(array_at(found.address, (found.nbytes,), (1,), _BYTE, found))
    return alias if isinstance(storage, Tensor) else alias.untyped_storage()
