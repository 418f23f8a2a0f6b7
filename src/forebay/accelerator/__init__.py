"""The names of `torch.accelerator`, over whichever kind of device is this thread's current one: a list.

Without an accelerator that is the host device, so the same program runs everywhere; PyTorch has none then.

>>> import forebay, forebay.accelerator as accelerator
>>> with forebay.emulate("cuda", count=2):
...     forebay.set_device("cuda:1")
...     print(accelerator.current_accelerator(), accelerator.current_device_index(), accelerator.device_count())
cuda 1 2
"""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import Any

from forebay.accelerator import graphs, memory, random
from forebay.accelerator._kind import accelerator as _accelerator
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
from forebay.device_spec import Device
from forebay.errors import ForebayError
from forebay.faces.devices import Devices as _Devices
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


def current_accelerator(check_available: bool = False) -> Device | None:
    """The kind, as a device without an index; None where it has no device and `check_available`. Opens nothing."""
    kind = _accelerator()
    return None if check_available and not kind.count() else Device(kind.name)


def device_count() -> int:
    """How many devices of the kind there are. Initialises nothing."""
    return _accelerator().count()


def is_available() -> bool:
    """Whether there is one. Initialises nothing."""
    return device_count() > 0


def get_device_capability(device: Any = None, /) -> dict[str, Any]:
    """Which dtypes a device computes with: forebay computes with none, so RuntimeError, as PyTorch's for CUDA."""
    _get_device_index(device, optional=True)
    raise ForebayError("Backend doesn't support getting device capabilities.")


def current_device_index() -> int:
    """The index of this thread's current device. Initialises the kind."""
    return _accelerator().current_index()


def current_device_idx() -> int:
    """`current_device_index` under its old name, with a warning."""
    warnings.warn("Use `current_device_index` instead.", FutureWarning, stacklevel=2)
    return current_device_index()


def set_device_index(device: Any, /) -> None:
    """Make the device this thread's current one; a negative index changes nothing. Opens nothing."""
    index = _get_device_index(device)
    if index >= 0:
        _accelerator().exchange(index)


def set_device_idx(device: Any, /) -> None:
    """`set_device_index` under its old name, with a warning."""
    warnings.warn("Use `set_device_index` instead.", FutureWarning, stacklevel=2)
    set_device_index(device)


class device_index:  # noqa: N801 -- PyTorch's name
    """The device of that index is current inside, the one before it afterwards; None changes nothing.

    TypeError for what is no int, DeviceError on entering where there is no such device.
    """

    def __init__(self, device: int | None, /) -> None:
        if device is not None and not isinstance(device, int):
            raise TypeError(f"device_index takes an index or None, not {device!r}")
        self.idx = None if device is None else int(device)  # True is 1, as in PyTorch
        self.prev_idx = -1

    def __enter__(self) -> None:
        self._kind = _accelerator()
        if self.idx is not None:
            self._kind.check(self.idx)
            self.prev_idx = self._kind.exchange(self.idx)

    def __exit__(self, *exc_info: object) -> None:
        if self.idx is not None:
            self._kind.exchange(self.prev_idx)


def current_stream(device: Any = None, /) -> _streams.Stream:
    """The stream that this thread's work on the device goes to; -1 is the current device. Opens the device."""
    kind = _accelerator()
    return _streams.stream_of(kind.opened(kind.ranged(_index_or_current(device))))


def set_stream(stream: _streams.Stream) -> None:
    """Make the stream this thread's current one, and its device the current device."""
    _streams.set_stream(stream)


def synchronize(device: Any = None, /) -> None:
    """Wait until all work on all streams of the device is done; a failure nobody heard of is raised, once.

    ForebayError, in PyTorch's words, for a negative index.
    """
    index = _get_device_index(device, optional=True)
    if index < 0:
        raise ForebayError(f"device id must be non-negative!{index}")
    _Devices(_accelerator()).synchronize(index)
