"""The API of `torch.mps` over forebay's runtime. Differences from PyTorch: docs/differences.md.

Examples
--------
>>> import forebay, forebay.mps as mps
>>> with forebay.emulate("mps", profile="apple_m3_max"):
...     ones = forebay.full((1000,), 1.0, device="mps")
...     mps.synchronize()
...     mps.is_available(), mps.current_allocated_memory() >= ones.nbytes
(True, True)
"""

from __future__ import annotations

from typing import Any, Final

from forebay.mps import profiler
from forebay.mps._kind import MPS as _MPS
from forebay.mps._kind import get_open_device as _get_open_device
from forebay.mps._kind import require_backend as _require_backend
from forebay.mps._memory import (
    current_allocated_memory,
    driver_allocated_memory,
    empty_cache,
    recommended_max_memory,
    set_per_process_memory_fraction,
)
from forebay.mps._memory import host_alias_storage as _host_alias_storage
from forebay.mps._random import generator as _get_default_mps_generator
from forebay.mps._random import generator_if_available as _generator_if_available
from forebay.mps._random import get_rng_state, manual_seed, seed, set_rng_state
from forebay.mps._shaders import compile_shader, load_metallib
from forebay.mps.event import Event
from forebay.mps.streams import Stream, current_stream, default_stream, set_stream, stream
from forebay.names.devices import DeviceFunctions as _Devices

__all__ = [
    "Event",
    "Stream",
    "compile_shader",
    "current_allocated_memory",
    "current_stream",
    "default_stream",
    "device_count",
    "driver_allocated_memory",
    "empty_cache",
    "get_rng_state",
    "is_available",
    "load_metallib",
    "manual_seed",
    "profiler",
    "recommended_max_memory",
    "seed",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_stream",
    "stream",
    "synchronize",
]

_devices = _Devices(_MPS)
device_count: Final = _devices.device_count
is_available: Final = _devices.is_available
_is_in_bad_fork = _devices.is_in_bad_fork


def synchronize() -> None:
    """Wait until all work on all streams of the device has completed.

    As `torch.mps.synchronize`. Initialises MPS but does not open a device.

    Raises
    ------
    DeviceError
        If queued work failed and the failure was not reported yet.
    ForebayError
        If there is no MPS device.
    """
    opened = _get_open_device()
    if opened is None:
        _require_backend("deviceSynchronize")
        _devices.synchronize()
    else:
        opened.synchronize()


def __getattr__(name: str) -> Any:
    if name == "_default_mps_generator":
        return _generator_if_available()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
