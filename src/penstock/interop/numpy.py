"""NumPy's arrays in a host device's memory, through NumPy's data-allocation handler (NEP 49).

Array data of at least SMALLEST bytes comes from the device's allocator: cached, counted, in its history, bound by its
capacity. Smaller arrays, and whatever the device is not asked for, go where they went before. An array outlives any of
this: its memory goes back where it came from, whenever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy._core._exceptions import _ArrayMemoryError

from penstock._core import NumpyHook, restore_numpy_handler, take_numpy_refusal
from penstock.device import Device
from penstock.errors import OutOfMemory, Unsupported, WrongState
from penstock.runtime.current import opened_for
from penstock.runtime.open_device import OpenDevice

__all__ = ["SMALLEST", "ArrayOutOfMemory", "install", "installed", "serving", "uninstall"]

SMALLEST = 64 * 1024  # bytes; below it the C library is as quick and the blocks' rounding shows (docs/benchmarks.md)

_standing: dict[tuple[Device, int], NumpyHook] = {}  # those in NumPy's default handler, which is for good


class ArrayOutOfMemory(OutOfMemory, _ArrayMemoryError):  # type: ignore[misc]  # NumPy's own class is not typed
    """A NumPy array that the device had no room for: OutOfMemory, and NumPy's own error too (`shape`, `dtype`)."""

    cause: BaseException

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        super().__init__(f"{self.cause}\nIt was wanted for a NumPy array of shape {shape} and dtype {dtype}.")
        vars(self).update(vars(self.cause))
        self.shape = shape
        self.dtype = dtype

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return OutOfMemory, (str(self),), {**vars(self)}


def _new_error(cls: type[BaseException], *args: Any) -> BaseException:
    """NumPy makes its own error after a refusal and keeps the class, so it is the making that becomes ours."""
    cause = take_numpy_refusal() if cls is _ArrayMemoryError else None
    if cause is None:
        return MemoryError.__new__(cls, *args)
    error = ArrayOutOfMemory.__new__(ArrayOutOfMemory, *args)
    error.cause = cause
    return error


def install(device: Device | str | int = "host:0", *, smallest: int = SMALLEST) -> None:
    """Serve every thread's and context's arrays of at least `smallest` bytes from the device, from now on.

    Opens the device. Again for the same device and size it does nothing; WrongState while another one is installed.
    """
    opened = _host_device(device)
    key = (opened.device, smallest)
    for other, hook in _standing.items():
        if hook.serving and other != key:
            raise WrongState(f"NumPy is served by {other[0]} from {other[1]} bytes on: call uninstall() first")
    if key in _standing and _standing[key].pool is opened.allocator:
        _standing[key].serving = True
        return
    hook = _standing[key] = _new_hook(opened, smallest)
    hook.everywhere()


def uninstall() -> None:
    """New arrays go where they went before `install`; those that live stay where they are. Twice is once."""
    for hook in _standing.values():
        hook.serving = False


def installed() -> Device | None:
    """The device that serves every thread, or None."""
    return next((device for (device, _), hook in _standing.items() if hook.serving), None)


@contextmanager
def serving(device: Device | str | int = "host:0", *, smallest: int = SMALLEST) -> Iterator[None]:
    """Serve the arrays made inside, by this thread or task (a contextvars context), from the device.

    >>> import numpy as np, penstock
    >>> with serving("host:0"):
    ...     array = np.ones(1 << 20)
    >>> penstock.memory.memory_allocated("host:0") >= array.nbytes
    True
    """
    before = _new_hook(_host_device(device), smallest).in_context()
    try:
        yield
    finally:
        restore_numpy_handler(before)


def _host_device(device: Device | str | int) -> OpenDevice:
    opened = opened_for(device)
    if not opened.port.props.host_visible:
        raise Unsupported(f"NumPy cannot read the memory of {opened.device}", ability="host_visible")
    return opened


def _new_hook(opened: OpenDevice, smallest: int) -> NumpyHook:
    if smallest < 1:
        raise ValueError(f"smallest is at least 1 byte, not {smallest}")
    _ArrayMemoryError.__new__ = _new_error
    return NumpyHook(opened.allocator, smallest)
