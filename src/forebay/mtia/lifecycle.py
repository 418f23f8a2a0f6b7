"""Initialisation of MTIA and calls queued for it: PyTorch's names for `forebay.runtime.base.lazy_init`."""

from __future__ import annotations

from typing import Any, Final

from forebay.mtia._kind import MTIA
from forebay.names.devices import DeviceFunctions
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

_DEVICES = DeviceFunctions(MTIA)
is_initialized: Final = _DEVICES.is_initialized
is_available: Final = _DEVICES.is_available
device_count: Final = _DEVICES.device_count
current_device: Final = MTIA.current_index
synchronize: Final = _DEVICES.synchronize
_is_in_bad_fork = _DEVICES.is_in_bad_fork
_lazy_call = _DEVICES.lazy_call
_queued_calls = MTIA.initialisation.queued


def init() -> None:
    """Initialise MTIA and run the queued calls.

    As `torch.mtia.init`. The first use of a device does the same.

    Raises
    ------
    AssertionError
        If there is no backend.
    RuntimeError
        If there is no device, or in a process forked from one that had initialised MTIA.
    """
    MTIA.initialisation.ensure()


_lazy_init = init


def _is_compiled() -> bool:
    """Return True if there is a backend, emulation included. (`torch.mtia._is_compiled`)"""
    return MTIA.initialisation.has_backend()
