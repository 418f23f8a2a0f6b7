"""Initialisation of CUDA and the calls deferred until then: PyTorch's names for `forebay.runtime.base.lazy_init`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from forebay.cuda._kind import CUDA
from forebay.cuda.streams import current_stream
from forebay.errors import Unsupported
from forebay.names.devices import DeviceFunctions
from forebay.runtime.base import observers
from forebay.runtime.base.lazy_init import SeedTracker as _LazySeedTracker
from forebay.runtime.base.queue_capabilities import can_launch
from forebay.runtime.memory import ipc_memory

__all__ = [
    "_LazySeedTracker",
    "_exchange_device",
    "_is_compiled",
    "_is_in_bad_fork",
    "_lazy_call",
    "_lazy_init",
    "_maybe_exchange_device",
    "_queued_calls",
    "_sleep",
    "current_device",
    "device_count",
    "get_sync_debug_mode",
    "init",
    "ipc_collect",
    "is_available",
    "is_initialized",
    "set_sync_debug_mode",
    "synchronize",
]

_devices = DeviceFunctions(CUDA)
init: Final = _devices.init
is_initialized: Final = _devices.is_initialized
is_available: Final = _devices.is_available
device_count: Final = _devices.device_count
current_device: Final = CUDA.current_index
synchronize: Final = _devices.synchronize
set_sync_debug_mode: Final = _devices.set_sync_debug_mode
get_sync_debug_mode: Final = _devices.get_sync_debug_mode
_is_in_bad_fork = _devices.is_in_bad_fork
_exchange_device = _maybe_exchange_device = _devices.exchange_device
_lazy_init = _devices.init
_queued_calls = CUDA.initialisation.queued

_libc = ctypes.CDLL(None)
_DEFAULT_CLOCK_KHZ = 1_000_000  # if the profile has no clock rate


# Written by tools/write_names.py from tools/names/devices.toml: edit the table, not these lines.


def ipc_collect() -> None:
    """Release exported memory that no other process uses any more.

    As `torch.cuda.ipc_collect`. Initialises CUDA, does not wait.

    Raises
    ------
    RuntimeError
        If there is no CUDA device.
    """
    init()
    ipc_memory.collect()


# End of the written lines.


def _is_compiled() -> bool:
    """Return True: every build supports CUDA devices, at least by emulation."""
    return True


def _lazy_call(callable: Callable[[], Any], **kwargs: Any) -> None:  # noqa: A002 -- PyTorch's name
    """Call the function now or, before CUDA's first use, at that use.

    Of the deferred calls with `seed_all=True` only the last runs, likewise with `seed=True` (see `SeedTracker`).
    """
    _devices.lazy_call(callable, **kwargs)


def _sleep(cycles: int) -> None:
    """Keep the current stream busy for a number of cycles of the device's clock; the host does not wait."""
    stream = current_stream()
    queue = stream.queue
    if not can_launch(queue):
        raise Unsupported(f"the queues of {stream.opened.device} cannot run host functions", ability="Launches")
    clock = stream.opened.port.props.details.get("clock_rate") or _DEFAULT_CLOCK_KHZ
    address = ctypes.cast(_libc.usleep, ctypes.c_void_p).value
    _queue_native_call(queue, address or 0, min(int(cycles * 1000 / clock), (1 << 32) - 1))


def _queue_native_call(queue: Any, function: int, argument: int) -> None:
    tracer = observers.tracer
    begun = tracer.queueing(queue) if tracer else None
    queue.call_native(function, argument)
    if tracer:
        tracer.queued(queue, begun, "native", "_sleep")
