"""NumPy's arrays in a host device's memory, through NumPy's data-allocation handler (NEP 49).

Array data of at least SMALLEST bytes comes from the device's allocator: cached, counted, in its history, bound by its
capacity. Smaller arrays, and whatever the device is not asked for, go where they went before. An array outlives any of
this: its memory goes back where it came from, whenever.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy._core._exceptions import _ArrayMemoryError

from forebay._core import NumpyHook, numpy_refusals, restore_numpy_handler
from forebay.device_spec import Device
from forebay.errors import OutOfMemory, Unsupported, WrongState
from forebay.runtime.devices.current import opened_for
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["SMALLEST", "ArrayOutOfMemory", "install", "installed", "serving", "uninstall"]

SMALLEST = 128 * 1024  # bytes; below, the C library is quicker and wastes less (docs/design/numpy-allocations.md)

# NumPy's own place in the pool. What streams gave back is free in their order, and NumPy waits for none of them.
_NO_STREAM = 1 << 62

_standing: dict[Device, NumpyHook] = {}  # those in NumPy's default handler, which is for good


class ArrayOutOfMemory(OutOfMemory, _ArrayMemoryError):
    """A NumPy array that the device had no room for: OutOfMemory, and NumPy's own error too (`shape`, `dtype`)."""

    cause: OutOfMemory

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        super().__init__(f"{self.cause}\nIt was wanted for a NumPy array of shape {shape} and dtype {dtype}.")
        vars(self).update(vars(self.cause))
        self.shape = shape
        self.dtype = dtype

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.cause, self.shape, self.dtype)


ArrayOutOfMemory.__module__, ArrayOutOfMemory.__qualname__ = "forebay", "OutOfMemory"  # the name to catch


def _again(cause: OutOfMemory, *wanted: Any) -> ArrayOutOfMemory:
    error = ArrayOutOfMemory.__new__(ArrayOutOfMemory, *wanted)
    error.cause = cause
    error.__init__(*wanted)  # type: ignore[misc]  # as NumPy does after _new_error
    return error


def _take_refusal(nbytes: int) -> BaseException | None:
    """Why this thread got no memory for so many bytes; told once."""
    wanted, failure = getattr(numpy_refusals, "last", (None, None))
    if wanted != nbytes:
        return None
    del numpy_refusals.last
    return failure


def _new_error(cls: type[BaseException], *args: Any) -> BaseException:
    """NumPy makes its own error after a refusal and keeps the class, so it is the making that becomes ours."""
    if cls is _ArrayMemoryError and len(args) == 2:
        shape, dtype = args
        cause = _take_refusal(math.prod(shape, start=dtype.itemsize))
        if isinstance(cause, OutOfMemory):
            error = ArrayOutOfMemory.__new__(ArrayOutOfMemory, *args)
            error.cause = cause
            return error
    return MemoryError.__new__(cls, *args)


def install(device: Device | str | int = "host:0", *, smallest: int = SMALLEST) -> None:
    """Serve every thread's and context's arrays of at least `smallest` bytes from the device, from now on.

    Opens the device. Again for the same device and size it does nothing; WrongState while another one is installed.
    A forked child is not served: it calls `forebay.reopen` and this again, if it wants to be.
    """
    opened = _host_device(device, smallest)
    for other, hook in _standing.items():
        if hook.serving and (other, hook.smallest) != (opened.device, smallest):
            raise WrongState(f"NumPy is served by {other} from {hook.smallest} bytes on: call uninstall() first")
    standing = _standing.get(opened.device)
    if standing is None or standing.pool is not opened.allocator:
        standing = _standing[opened.device] = _new_hook(opened, smallest)
        standing.everywhere()
    standing.smallest = smallest
    standing.serving = True


def uninstall() -> None:
    """New arrays go where they went before `install`; those that live stay where they are. Twice is once."""
    for hook in _standing.values():
        hook.serving = False


def installed() -> Device | None:
    """The device that serves every thread, or None."""
    return next((device for device, hook in _standing.items() if hook.serving), None)


@contextmanager
def serving(device: Device | str | int = "host:0", *, smallest: int = SMALLEST) -> Iterator[None]:
    """Serve the arrays made inside, by this thread or task (a contextvars context), from the device.

    >>> import numpy as np, forebay
    >>> with serving("host:0"):
    ...     array = np.ones(1 << 20)
    >>> forebay.memory.memory_allocated("host:0") >= array.nbytes
    True
    """
    before = _new_hook(_host_device(device, smallest), smallest).in_context()
    try:
        yield
    finally:
        restore_numpy_handler(before)


def _host_device(device: Device | str | int, smallest: int) -> OpenDevice:
    if smallest < 1:
        raise ValueError(f"smallest is at least 1 byte, not {smallest}")
    opened = opened_for(device)
    if not opened.port.props.host_visible:
        raise Unsupported(f"NumPy cannot read the memory of {opened.device}", ability="host_visible")
    return opened


def _new_hook(opened: OpenDevice, smallest: int) -> NumpyHook:
    _ArrayMemoryError.__new__ = _new_error  # type: ignore[method-assign, assignment]  # that is the trick
    return NumpyHook(opened.allocator, _NO_STREAM, smallest, pages=opened.port.props.zero_pages)
