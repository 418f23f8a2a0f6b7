"""NumPy arrays in the memory of a CPU device, through NumPy's data-allocation handler (NEP 49).

Array data of at least SMALLEST bytes is allocated by the device's caching allocator: it is cached, counted, recorded in
the memory history and limited by the capacity. Smaller arrays use NumPy's previous allocator. Arrays may outlive the
installation: each is freed by the allocator that allocated it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from numpy._core._exceptions import _ArrayMemoryError

from forebay._base.device_spec import Device, DeviceLike
from forebay._core import NumpyHook, numpy_failures, restore_numpy_handler
from forebay.errors import OutOfMemory, Unsupported, WrongState
from forebay.runtime.devices.current import opened_for
from forebay.runtime.devices.open_device import OpenDevice

__all__ = [
    "SMALLEST",
    "ArrayOutOfMemory",
    "OtherArrays",
    "install",
    "installed",
    "installed_on",
    "newest_hook",
    "other_arrays",
    "serving",
    "uninstall",
]

SMALLEST = 128 * 1024  # bytes; below, malloc is faster and wastes less memory (docs/design/numpy-allocations.md)

# Queue handle of NumPy's blocks. Memory freed on a stream may be reused in that stream's order only. NumPy does not
# wait for streams, so it must not reuse such memory.
_NUMPY_QUEUE = 1 << 62

_installed: dict[Device, NumpyHook] = {}  # hooks in NumPy's default handler, which are permanent


class _Calls:
    """Number of calls of `install` and `uninstall`."""

    count = 0


_calls = _Calls()


class ArrayOutOfMemory(OutOfMemory, _ArrayMemoryError):
    """OutOfMemory for a NumPy array; also NumPy's `_ArrayMemoryError`, with `shape` and `dtype`.

    Parameters
    ----------
    shape : tuple of int
        The shape of the array.
    dtype : numpy.dtype
        Its element type.
    """

    cause: OutOfMemory

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        super().__init__(f"{self.cause}\nRequested for a NumPy array of shape {shape} and dtype {dtype}.")
        vars(self).update(vars(self.cause))
        self.shape = shape
        self.dtype = dtype

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_error, (self.cause, self.shape, self.dtype)


ArrayOutOfMemory.__module__, ArrayOutOfMemory.__qualname__ = "forebay", "OutOfMemory"  # the name shown to users


def _rebuild_error(cause: OutOfMemory, *arguments: Any) -> ArrayOutOfMemory:
    error = ArrayOutOfMemory.__new__(ArrayOutOfMemory, *arguments)
    error.cause = cause
    error.__init__(*arguments)  # type: ignore[misc]  # NumPy calls it after _new_error, too
    return error


def _take_error(nbytes: int) -> BaseException | None:
    """Return and clear the error of this thread's last failed request, if it was for `nbytes`."""
    wanted, failure = getattr(numpy_failures, "last", (None, None))
    if wanted != nbytes:
        return None
    del numpy_failures.last
    return failure


def _new_error(cls: type[BaseException], *args: Any) -> BaseException:
    """Replace `_ArrayMemoryError.__new__`: NumPy creates its error after a failed request and caches the class."""
    if cls is _ArrayMemoryError and len(args) == 2:
        shape, dtype = args
        cause = _take_error(math.prod(shape, start=dtype.itemsize))
        if isinstance(cause, OutOfMemory):
            error = ArrayOutOfMemory.__new__(ArrayOutOfMemory, *args)
            error.cause = cause
            return error
    return MemoryError.__new__(cls, *args)


def install(device: DeviceLike = "cpu", *, smallest: int = SMALLEST) -> None:
    """Allocate new NumPy arrays of all threads from the device.

    Opens the device. Has no effect if the same device and size are installed. In a forked child, arrays are
    allocated on the device only after it has called `install` again.

    Parameters
    ----------
    device : Device or str or int, optional
        A device whose memory the host can access; "cpu" by default.
    smallest : int, optional
        Minimum size in bytes of arrays that are allocated on the device; smaller arrays use NumPy's previous allocator.

    Raises
    ------
    ValueError
        If `smallest` is less than 1.
    Unsupported
        If the host cannot access the device's memory.
    WrongState
        If another device or size is installed.
    """
    opened = _open_host_visible(device, smallest)
    for other, other_hook in _installed.items():
        if other_hook.serving and (other, other_hook.smallest) != (opened.device, smallest):
            message = f"NumPy arrays of {other_hook.smallest} bytes or more are allocated on {other}"
            raise WrongState(f"{message}: call uninstall() first")
    hook = _installed.get(opened.device)
    if hook is None or hook.pool is not opened.allocator:
        hook = _installed[opened.device] = _new_hook(opened, smallest)
        hook.everywhere()
    hook.smallest = smallest
    hook.serving = True
    _calls.count += 1


def uninstall() -> None:
    """Allocate new arrays from NumPy's previous allocator again. Existing arrays keep their memory. Idempotent."""
    _calls.count += 1
    for hook in _installed.values():  # their functions stay: Note [Arrays outlive their handler]
        hook.serving = False


def installed() -> Device | None:
    """Return the device on which NumPy arrays of all threads are allocated; None after `uninstall`."""
    return next((device for device, hook in _installed.items() if hook.serving), None)


@contextmanager
def installed_on(device: DeviceLike = "cpu") -> Iterator[None]:
    """Allocate new NumPy arrays of all threads from the device inside the context.

    Changes nothing if arrays are allocated on a device already. What the program installs or uninstalls inside the
    context remains so after it.

    Parameters
    ----------
    device : Device or str or int, optional
        A device whose memory the host can access; "cpu" by default.

    Raises
    ------
    Unsupported
        If the host cannot access the device's memory.
    """
    if installed() is not None:
        yield
        return
    install(device)
    ours = _calls.count
    try:
        yield
    finally:
        if _calls.count == ours:
            uninstall()


@dataclass(frozen=True, slots=True)
class OtherArrays:
    """Arrays that NumPy's previous allocator allocated since `install`: the small ones, and those that grew.

    Parameters
    ----------
    count : int
        Number of allocations.
    nbytes : int
        Sum of their bytes, with those by which arrays grew: never less than the peak.
    peak : int
        Maximum of the bytes in use at once. Approximate: of an array that grew, the first size counts after its end.
    current : int
        Bytes in use now, as approximate.
    """

    count: int
    nbytes: int
    peak: int
    current: int = 0


def other_arrays(*, reset: bool = False) -> OtherArrays:
    """Return the use of NumPy's previous allocator since `install`, by all threads.

    Parameters
    ----------
    reset : bool, default False
        Start to count anew.

    Returns
    -------
    OtherArrays
        The arrays that were not allocated on a device; all zero before `install`.

    Examples
    --------
    >>> import numpy as np
    >>> install("cpu")
    >>> before = other_arrays()
    >>> small = [np.ones(1000) for _ in range(3)]
    >>> other_arrays().nbytes - before.nbytes >= 24_000
    True
    >>> uninstall()
    """
    hook = newest_hook()
    if hook is None:
        return OtherArrays(0, 0, 0)
    count, nbytes, current, peak = hook.forwarded()
    if reset:
        hook.reset_forwarded()
    return OtherArrays(count, nbytes, peak, current)


def newest_hook() -> NumpyHook | None:
    """Return the hook that NumPy calls first, which forwards to the others; None before `install`."""
    return next(reversed(_installed.values()), None)


@contextmanager
def serving(device: DeviceLike = "cpu", *, smallest: int = SMALLEST) -> Iterator[None]:
    """Allocate NumPy arrays created inside the context from the device.

    Affects the current thread or task only (a contextvars context).

    Parameters
    ----------
    device : Device or str or int, optional
        A device whose memory the host can access; "cpu" by default.
    smallest : int, optional
        Minimum size in bytes of arrays that are allocated on the device.

    Raises
    ------
    ValueError
        If `smallest` is less than 1.
    Unsupported
        If the host cannot access the device's memory.

    Examples
    --------
    >>> import numpy as np, forebay
    >>> with serving("cpu"):
    ...     array = np.ones(1 << 20)
    >>> forebay.memory.memory_allocated("cpu") >= array.nbytes
    True
    """
    entered = _Entered(_new_hook(_open_host_visible(device, smallest), smallest).in_context())
    _entered.set((*_entered.get(), entered))
    try:
        yield
    finally:
        entered.ended = True
        remaining = _entered.get()
        if entered not in remaining:  # left in another context than it was entered in, as a generator can be
            remaining = (*remaining, entered)
        while remaining and remaining[-1].ended:  # the others end with the one that was entered after them
            restore_numpy_handler(remaining[-1].previous)
            remaining = remaining[:-1]
        _entered.set(remaining)


class _Entered:
    """An active or ended `serving` block, and NumPy's handler before it."""

    def __init__(self, previous: object) -> None:
        self.previous = previous
        self.ended = False


_entered: ContextVar[tuple[_Entered, ...]] = ContextVar("entered", default=())  # outermost first


def _open_host_visible(device: DeviceLike, smallest: int) -> OpenDevice:
    if smallest < 1:
        raise ValueError(f"smallest must be at least 1 byte, not {smallest}")
    opened = opened_for(device)
    if not opened.port.props.host_visible:
        raise Unsupported(f"NumPy cannot access the memory of {opened.device}", ability="host_visible")
    return opened


def _new_hook(opened: OpenDevice, smallest: int) -> NumpyHook:
    _ArrayMemoryError.__new__ = _new_error  # type: ignore[method-assign, assignment]  # permanently
    return NumpyHook(opened.allocator, _NUMPY_QUEUE, smallest, pages=opened.port.props.zero_pages)
