"""The functions of CUDA's runtime library that PyTorch binds, on whatever device CUDA is here. (`torch.cuda.cudart()`)

They give a code, as there, and do not raise what CUDA itself would say.
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

_REGISTER_FLAGS = 0xF  # portable, mapped, of a device's own, read-only


class cudaError(IntEnum):  # noqa: N801 -- CUDA's own name
    """A code of CUDA; of all of them only success has a name, as in PyTorch. TypeError for what is no int."""

    success = 0

    @classmethod
    def _missing_(cls, value: object) -> Any:
        if not isinstance(value, int):
            raise TypeError(f"a code of CUDA is an int, not {value!r}")
        code = int.__new__(cls, value)
        code._name_, code._value_ = "???", value
        return code


def cudaGetErrorString(error: cudaError) -> str:  # noqa: N802 -- CUDA's own name, as all that follow
    """CUDA's words for the code; TypeError for a plain int, as in PyTorch."""
    if not isinstance(error, cudaError):
        raise TypeError(f"cudaGetErrorString() takes a cudaError, not {error!r}: make it one, cudaError({error!r})")
    return text_of(int(error))


def cudaProfilerStart() -> cudaError:  # noqa: N802 -- as above
    """A mark among the ranges that tools hear of (`forebay.observe.ranges.ranges`), which they may begin at.

    Where FOREBAY_TRACE names a file, a trace begins, too, unless one goes on.
    """
    if (path := profiler_session.file_asked_for()) is not None:
        profiler_session.begin(CUDA.name, path)
    ranges.mark("cudaProfilerStart")
    return cudaError.success


def cudaProfilerStop() -> cudaError:  # noqa: N802 -- as above
    """As `cudaProfilerStart`; the trace ends, and is written."""
    ranges.mark("cudaProfilerStop")
    profiler_session.end(CUDA.name)
    return cudaError.success


def cudaHostRegister(ptr: int, size: int, flags: int) -> cudaError:  # noqa: N802 -- as above
    """Pin memory where it is: copies from and to it need not wait. Opens the current device.

    Whoever registers it keeps it alive, and unregisters it first. The flags make no difference. Codes: 1 for nonsense,
    2 where the system locks no more, 712 where part of it is registered already.
    """
    opened = CUDA.opened()
    if ptr <= 0 or size <= 0 or ptr + size >= 1 << 63 or flags & ~_REGISTER_FLAGS:
        return cudaError(INVALID_VALUE)
    port = opened.port
    if not isinstance(port, PinsInPlace):
        raise Unsupported(f"{opened.device} pins no memory that is there already", ability="PinsInPlace")
    try:
        new = registered_memory.register(CUDA.name, port, ptr, size)
    except DeviceError:
        return cudaError(OUT_OF_MEMORY)
    return cudaError.success if new else cudaError(REGISTERED_ALREADY)


def cudaHostUnregister(ptr: int) -> cudaError:  # noqa: N802 -- as above
    """The memory may be swapped out again. Code 713 where none is registered that begins there."""
    CUDA.opened()
    known = registered_memory.unregister(CUDA.name, ptr)
    return cudaError.success if known else cudaError(NOT_REGISTERED)


_streams: dict[int, tuple[OpenDevice, Queue]] = {}  # by handle: made here and not destroyed yet
_spare: list[tuple[OpenDevice, Queue]] = []
_borrowing = threading.RLock()  # a destructor may come in between


def cudaStreamCreate(ptr: int) -> cudaError:  # noqa: N802 -- as above
    """A stream of the current device, which is opened; its handle is written to the address.

    It is for `torch.cuda.ExternalStream`; a destroyed one's queue serves the next.
    """
    opened = CUDA.opened()
    if ptr <= 0:
        return cudaError(INVALID_VALUE)
    with _borrowing:
        _spare[:] = [(device, queue) for device, queue in _spare if not device.gone]
        found = next((each for each in _spare if each[0] is opened), None)
        if found is not None:
            _spare.remove(found)
    queue = opened.new_queue(0) if found is None else found[1]
    _streams[queue.handle] = opened, queue
    ctypes.c_uint64.from_address(ptr).value = queue.handle
    return cudaError.success


def cudaStreamDestroy(stream: int) -> cudaError:  # noqa: N802 -- as above
    """The handle means nothing from now on; what is queued is still done. Code 400 for a handle that is none."""
    CUDA.opened()
    known = _streams.pop(stream, None)
    if known is None:
        return cudaError(INVALID_HANDLE)
    if not known[0].gone:
        with _borrowing:
            _spare.append(known)
    return cudaError.success


def cudaMemGetInfo(device: int) -> tuple[int, int]:  # noqa: N802 -- as above
    """The bytes of a device that are free, and all; -1 means the current one. DeviceError where there is no such."""
    return CUDA.opened(None if device == -1 else device).port.memory_info()
