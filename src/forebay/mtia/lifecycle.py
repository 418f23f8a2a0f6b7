"""When MTIA is first used, and what waits for that: PyTorch's names for `forebay.runtime.base.lazy_init`."""

from __future__ import annotations

from typing import Any

from forebay.faces.devices import Devices
from forebay.mtia._kind import MTIA
from forebay.runtime.base.lazy_init import SeedTracker as _LazySeedTracker

__all__ = [
    "_LazySeedTracker",
    "_is_compiled",
    "_is_in_bad_fork",
    "_lazy_call",
    "_lazy_init",
    "_queued_calls",
    "current_device",
    "device_count",
    "init",
    "is_available",
    "is_initialized",
    "synchronize",
]

_DEVICES = Devices(MTIA)
is_initialized = _DEVICES.is_initialized
is_available = _DEVICES.is_available
device_count = _DEVICES.device_count
current_device = MTIA.current_index
synchronize = _DEVICES.synchronize
_is_in_bad_fork = _DEVICES.is_in_bad_fork
_lazy_call = _DEVICES.lazy_call
_queued_calls = MTIA.initialisation.queued


def init() -> None:
    """Initialise MTIA, which its first use does as well; queued calls run now.

    AssertionError where there is no backend, RuntimeError where that has no device, and in a process forked from one
    that had initialised MTIA. (`torch.mtia.init`)
    """
    MTIA.initialisation.ensure()


_lazy_init = init


def _is_compiled() -> bool:
    """Whether there is a backend, be it one that emulates. (`torch.mtia._is_compiled`)"""
    return MTIA.initialisation.has_backend()
