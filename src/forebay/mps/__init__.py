"""The names of `torch.mps`, over forebay's runtime: a list, and what only MPS has. See docs/differences.md.

>>> import forebay, forebay.mps as mps
>>> with forebay.emulate("mps", profile="apple_m3_max"):
...     ones = forebay.full(1000, 1.0, device="mps")
...     mps.synchronize()
...     mps.is_available(), mps.current_allocated_memory() >= ones.nbytes
(True, True)
"""

from __future__ import annotations

from typing import Any

from forebay.faces.devices import Devices as _Devices
from forebay.mps import profiler
from forebay.mps._kind import MPS as _MPS
from forebay.mps._kind import check_there_for as _check_there_for
from forebay.mps._kind import device_if_open as _device_if_open
from forebay.mps._memory import (
    current_allocated_memory,
    driver_allocated_memory,
    empty_cache,
    recommended_max_memory,
    set_per_process_memory_fraction,
)
from forebay.mps._memory import host_alias_storage as _host_alias_storage
from forebay.mps._random import generator as _get_default_mps_generator
from forebay.mps._random import generator_if_there as _generator_if_there
from forebay.mps._random import get_rng_state, manual_seed, seed, set_rng_state
from forebay.mps._shaders import compile_shader, load_metallib
from forebay.mps.event import Event
from forebay.mps.streams import Stream, current_stream, default_stream, set_stream, stream

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
device_count = _devices.device_count
is_available = _devices.is_available
_is_in_bad_fork = _devices.is_in_bad_fork


def synchronize() -> None:
    """Wait until all work on all streams of the device is done; a failure nobody heard of is raised, once."""
    opened = _device_if_open()
    if opened is None:
        _check_there_for("deviceSynchronize")
        _devices.synchronize()
    else:
        opened.synchronize()


def __getattr__(name: str) -> Any:
    if name == "_default_mps_generator":
        return _generator_if_there()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
