"""The functions of `torch.accelerator`, for the kind of device that is the current accelerator.

It is the kind of the thread's current device; while that is the CPU, the preferred kind that has a device: CUDA, MPS,
MTIA, then those of other packages. Without an accelerator, functions raise the errors of PyTorch's CPU build.

Examples
--------
>>> import forebay, forebay.accelerator as accelerator
>>> accelerator.is_available(), accelerator.current_accelerator()
(False, None)
>>> with forebay.emulate("cuda", count=2):
...     forebay.set_device("cuda:1")
...     print(accelerator.current_accelerator(), accelerator.current_device_index(), accelerator.device_count())
cuda 1 2
"""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import Any

from forebay._base.device_spec import NO_ACCELERATOR, Device, DeviceLike
from forebay.accelerator import graphs, memory, random
from forebay.accelerator._kind import accelerator as _accelerator
from forebay.accelerator._kind import known as _known
from forebay.accelerator._utils import _get_device_index, _index_or_current
from forebay.accelerator.graphs import Graph
from forebay.accelerator.memory import (
    empty_cache,
    empty_host_cache,
    get_memory_info,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from forebay.errors import ForebayError
from forebay.names.devices import DeviceFunctions as _Devices
from forebay.names.kind import DeviceKind as _DeviceKind
from forebay.runtime.devices.current import accelerator_kind as _accelerator_kind
from forebay.runtime.streams import stream as _streams

__all__ = [
    "Graph",
    "current_accelerator",
    "current_device_idx",
    "current_device_index",
    "current_stream",
    "device_count",
    "device_index",
    "empty_cache",
    "empty_host_cache",
    "get_device_capability",
    "get_memory_info",
    "graphs",
    "is_available",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "random",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_device_idx",
    "set_device_index",
    "set_stream",
    "synchronize",
]


# Written by tools/write_names.py from tools/names/devices.toml: edit the table, not these lines.


def get_device_capability(device: DeviceLike | None = None, /) -> dict[str, Any]:
    """Raise, as PyTorch does for CUDA: no list of supported dtypes exists.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    ForebayError
        Always.
    """
    _get_device_index(device, optional=True)
    _accelerator()  # raises without one
    raise ForebayError("Backend doesn't support getting device capabilities.")


def current_accelerator(check_available: bool = False) -> Device | None:
    """Return the kind of the current accelerator, a device without an index; None without an accelerator.

    As `torch.accelerator.current_accelerator`. Does not open a device.

    Parameters
    ----------
    check_available : bool, optional
        True to return None for a kind without devices.
    """
    name = _accelerator_kind()
    if name is None:
        return None
    return None if check_available and not _accelerator().count() else Device(name)


def set_device_index(device: DeviceLike, /) -> None:
    """Make a device this thread's current one.

    As `torch.accelerator.set_device_index`. Initialises the kind, but does not open a device.

    Parameters
    ----------
    device : device or str or int
        The device; a negative index changes nothing.

    Raises
    ------
    ForebayError
        If there is no accelerator, or no such device.
    ValueError
        If the device is of another kind.
    """
    index = _get_device_index(device)
    if index >= 0:
        _accelerator().exchange(index)


def set_device_idx(device: DeviceLike, /) -> None:
    """Call `set_device_index`, with a deprecation warning.

    Parameters
    ----------
    device : device or str or int
        The device; a negative index changes nothing.
    """
    warnings.warn("Use `set_device_index` instead.", FutureWarning, stacklevel=2)
    set_device_index(device)


# End of the written lines.

# Written by tools/write_names.py from tools/names/streams.toml: edit the table, not these lines.


def set_stream(stream: _streams.Stream) -> None:
    """Make a stream this thread's current one, and its device the current device.

    As `torch.accelerator.set_stream`.

    Parameters
    ----------
    stream : Stream
        The stream.
    """
    if _accelerator_kind() is None and isinstance(stream, _streams.Stream):
        raise ForebayError(NO_ACCELERATOR)
    _streams.set_stream(stream)


# End of the written lines.


def device_count() -> int:
    """Return the number of devices of the current accelerator; 0 without one. Does not initialise a device kind."""
    return 0 if _accelerator_kind() is None else _accelerator().count()


def is_available() -> bool:
    """Return True if there is an accelerator. Does not initialise a device kind."""
    return device_count() > 0


def current_device_index() -> int:
    """Return the index of this thread's current device. Initialises the kind."""
    return _accelerator().current_index()


def current_device_idx() -> int:
    """Return `current_device_index()`, with a deprecation warning."""
    warnings.warn("Use `current_device_index` instead.", FutureWarning, stacklevel=2)
    return current_device_index()


class device_index:  # noqa: N801 -- PyTorch's name
    """Context manager that makes the device of an index current and restores the previous one.

    As `torch.accelerator.device_index`.

    Parameters
    ----------
    device : int or None
        The index; None changes nothing.

    Raises
    ------
    TypeError
        If the argument is not an int.
    DeviceError
        When entered, if there is no such device.
    """

    def __init__(self, device: int | None, /) -> None:
        if device is not None and not isinstance(device, int):
            raise TypeError(f"device_index takes an index or None, not {device!r}")
        self.idx: int | None = None if device is None else int(device)  # True is 1, as in PyTorch
        self.prev_idx: int = -1
        self._kind: _DeviceKind | None = None

    def __enter__(self) -> None:
        if self.idx is not None:
            self._kind = _accelerator()
            self._kind.check(self.idx)
            self.prev_idx = self._kind.exchange(self.idx)

    def __exit__(self, *exc_info: object) -> None:
        if self._kind is not None:
            self._kind.exchange(self.prev_idx)


def current_stream(device: DeviceLike | None = None, /) -> _streams.Stream:
    """Return this thread's current stream on a device.

    As `torch.accelerator.current_stream`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default, also for -1.
    """
    if (opened := _known(device)) is None:
        index = _index_or_current(device)
        kind = _accelerator()
        opened = kind.open_device(kind.check_range(index))
    return _streams.current_stream_for(opened)


def synchronize(device: DeviceLike | None = None, /) -> None:
    """Wait until all work on all streams of a device has completed.

    As `torch.accelerator.synchronize`.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    DeviceError
        If that work failed; each failure is raised once.
    ForebayError
        If the index is negative, or if there is no accelerator.
    """
    if (opened := _known(device)) is not None:
        opened.synchronize()
        return
    index = _get_device_index(device, optional=True)
    if index < 0 and _accelerator_kind() is not None:
        raise ForebayError(f"device id must be non-negative!{index}")
    kind = _accelerator()
    if kind.initialised:
        _Devices(kind).synchronize(index)
