"""The functions of the CUDA runtime library that PyTorch binds, for real and emulated devices (`torch.cuda.cudart()`).

Where CUDA defines an error code, they return it instead of raising an exception.
"""

from __future__ import annotations

import ctypes
import threading
from enum import IntEnum
from typing import Any

from forebay.backends.common.cuda_errors import (
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_REGISTERED,
    OUT_OF_MEMORY,
    REGISTERED_ALREADY,
    text_of,
)
from forebay.backends.common.mmap import is_writable
from forebay.cuda._kind import CUDA
from forebay.errors import DeviceError, Unsupported
from forebay.observe.ranges import ranges
from forebay.observe.tracing import profiler_session
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.pinned import registered_memory
from forebay.spi import PinsInPlace, Queue

__all__ = [
    "cudaError",
    "cudaGetErrorString",
    "cudaHostRegister",
    "cudaHostUnregister",
    "cudaMemGetInfo",
    "cudaProfilerStart",
    "cudaProfilerStop",
    "cudaStreamCreate",
    "cudaStreamDestroy",
]

_REGISTER_FLAGS = 0xF  # portable, mapped, I/O memory, read-only


class cudaError(IntEnum):  # noqa: N801 -- CUDA's own name
    """A CUDA error code.

    As `torch.cuda.cudart().cudaError`: only `success` (0) has a name.

    Parameters
    ----------
    value : int
        The code.

    Raises
    ------
    TypeError
        If `value` is not an int.
    """

    success = 0

    @classmethod
    def _missing_(cls, value: object) -> Any:
        if not isinstance(value, int):
            raise TypeError(f"a CUDA error code must be an int, not {value!r}")
        code = int.__new__(cls, value)
        code._name_, code._value_ = "???", value
        return code


def cudaGetErrorString(error: cudaError) -> str:  # noqa: N802 -- CUDA's own name, as all below
    """Return CUDA's description of an error code.

    Parameters
    ----------
    error : cudaError
        The code.

    Raises
    ------
    TypeError
        If `error` is not a cudaError, not even an int, as in PyTorch.

    Examples
    --------
    >>> cudaGetErrorString(cudaError(2))
    'out of memory'
    """
    if not isinstance(error, cudaError):
        raise TypeError(f"cudaGetErrorString() expects a cudaError, not {error!r}: pass cudaError({error!r})")
    return text_of(int(error))


def cudaProfilerStart() -> cudaError:  # noqa: N802 -- as above
    """Send the mark "cudaProfilerStart" to the tools attached to `forebay.observe.ranges.ranges`; return success.

    If FOREBAY_TRACE names a file and no trace is active, starts one.
    """
    if (path := profiler_session.requested_file()) is not None:
        profiler_session.begin(CUDA.name, path)
    ranges.mark("cudaProfilerStart")
    return cudaError.success


def cudaProfilerStop() -> cudaError:  # noqa: N802 -- as above
    """Send the mark "cudaProfilerStop" to the tools, then end and write the active trace; return success."""
    ranges.mark("cudaProfilerStop")
    profiler_session.end(CUDA.name)
    return cudaError.success


def cudaHostRegister(ptr: int, size: int, flags: int) -> cudaError:  # noqa: N802 -- as above
    """Pin existing host memory, so that copies from and to it can be asynchronous.

    Initialises CUDA and opens the current device. The caller keeps the memory allocated until it is unregistered.

    Parameters
    ----------
    ptr : int
        The address.
    size : int
        Bytes.
    flags : int
        CUDA's flags; checked without effect.

    Returns
    -------
    cudaError
        Success, or 1 if an argument is invalid, 2 if the system cannot lock the memory, 712 if part of it is already
        registered.

    Raises
    ------
    Unsupported
        If the device cannot pin existing memory.
    """
    opened = CUDA.open_device()
    if ptr <= 0 or size <= 0 or ptr + size >= 1 << 63 or flags & ~_REGISTER_FLAGS:
        return cudaError(INVALID_VALUE)
    port = opened.port
    if not isinstance(port, PinsInPlace):
        raise Unsupported(f"{opened.device} cannot pin existing memory", ability="PinsInPlace")
    try:
        registered = registered_memory.register(CUDA.name, port, ptr, size)
    except DeviceError:
        return cudaError(OUT_OF_MEMORY)
    return cudaError.success if registered else cudaError(REGISTERED_ALREADY)


def cudaHostUnregister(ptr: int) -> cudaError:  # noqa: N802 -- as above
    """Unpin registered host memory.

    Initialises CUDA and opens the current device.

    Parameters
    ----------
    ptr : int
        The address that was registered.

    Returns
    -------
    cudaError
        Success, or 713 if no registered memory starts at the address.
    """
    CUDA.open_device()
    known = registered_memory.unregister(CUDA.name, ptr)
    return cudaError.success if known else cudaError(NOT_REGISTERED)


_streams: dict[int, tuple[OpenDevice, Queue]] = {}  # created here and not yet destroyed, by handle
_free_queues: list[tuple[OpenDevice, Queue]] = []
_lock = threading.RLock()  # guards _free_queues; re-entrant, because a destructor may run while it is held


def cudaStreamCreate(ptr: int) -> cudaError:  # noqa: N802 -- as above
    """Create a stream on the current device, for `ExternalStream`.

    Initialises CUDA and opens the device. Reuses the queue of a destroyed stream of the device if there is one.

    Parameters
    ----------
    ptr : int
        The address to write the stream's handle to, 8 bytes.

    Returns
    -------
    cudaError
        Success, or 1 if the process cannot write to `ptr`.
    """
    opened = CUDA.open_device()
    if not is_writable(ptr, 8):
        return cudaError(INVALID_VALUE)
    with _lock:
        _free_queues[:] = [(device, queue) for device, queue in _free_queues if not device.unusable]
        found = next((each for each in _free_queues if each[0] is opened), None)
        if found is not None:
            _free_queues.remove(found)
    queue = opened.new_queue(0) if found is None else found[1]
    _streams[queue.handle] = opened, queue
    ctypes.c_uint64.from_address(ptr).value = queue.handle
    return cudaError.success


def cudaStreamDestroy(stream: int) -> cudaError:  # noqa: N802 -- as above
    """Destroy a stream that `cudaStreamCreate` created; queued work still completes.

    Initialises CUDA and opens the current device.

    Parameters
    ----------
    stream : int
        The handle.

    Returns
    -------
    cudaError
        Success, or 400 if the handle is unknown.
    """
    CUDA.open_device()
    known = _streams.pop(stream, None)
    if known is None:
        return cudaError(INVALID_HANDLE)
    if not known[0].unusable:
        with _lock:
            _free_queues.append(known)
    return cudaError.success


def cudaMemGetInfo(device: int) -> tuple[int, int]:  # noqa: N802 -- as above
    """Return a device's free and total memory.

    Initialises CUDA and opens the device.

    Parameters
    ----------
    device : int
        The device's index; -1 is the current one.

    Raises
    ------
    DeviceError
        If the device does not exist.
    """
    return CUDA.open_device(None if device == -1 else device).port.memory_info()
