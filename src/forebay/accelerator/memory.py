"""The accelerator's memory. (`torch.accelerator.memory`)"""

from __future__ import annotations

from functools import cache
from typing import Any

from forebay._base.device_spec import DeviceLike
from forebay.accelerator._kind import accelerator
from forebay.accelerator._utils import _get_device_index
from forebay.names.kind import DeviceKind
from forebay.names.memory_history import MemoryHistory
from forebay.names.memory_statistics import MemoryStatistics
from forebay.runtime.allocator.displayed import OrderedStatistics
from forebay.runtime.devices import open_device

__all__ = [
    "empty_cache",
    "empty_host_cache",
    "get_memory_info",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
]

_ONLY_OF_CUDA = ("num_oom_rejections", "reserved_bytes_by_private_pools")  # statistics


def _statistics() -> MemoryStatistics:
    return _statistics_of(accelerator())


@cache
def _statistics_of(kind: DeviceKind) -> MemoryStatistics:
    return MemoryStatistics(kind)


def _index(device: Any) -> Any:
    """Return None for the current device: before the kind is initialised, there is none and no statistics."""
    return None if device is None else _get_device_index(device, optional=True)


# Written by tools/write_names.py from tools/names/memory.toml: edit the table, not these lines.


def memory_allocated(device_index: DeviceLike | None = None, /) -> int:
    """Return the bytes in use by live blocks; 0 before initialisation.

    As `torch.accelerator.memory.memory_allocated`. Does not open a device.

    Parameters
    ----------
    device_index : device or str or int, optional
        The device; the current one by default.
    """
    return _statistics().memory_allocated(_index(device_index))


def max_memory_allocated(device_index: DeviceLike | None = None, /) -> int:
    """Return the peak of the bytes in live blocks since the start or the last `reset_peak_memory_stats`.

    As `torch.accelerator.memory.max_memory_allocated`. Does not open a device.

    Parameters
    ----------
    device_index : device or str or int, optional
        The device; the current one by default.
    """
    return _statistics().max_memory_allocated(_index(device_index))


def memory_reserved(device_index: DeviceLike | None = None, /) -> int:
    """Return the bytes reserved in segments, used or cached; 0 before initialisation.

    As `torch.accelerator.memory.memory_reserved`. Does not open a device.

    Parameters
    ----------
    device_index : device or str or int, optional
        The device; the current one by default.
    """
    return _statistics().memory_reserved(_index(device_index))


def max_memory_reserved(device_index: DeviceLike | None = None, /) -> int:
    """Return the peak of the bytes in segments since the start or the last `reset_peak_memory_stats`.

    As `torch.accelerator.memory.max_memory_reserved`. Does not open a device.

    Parameters
    ----------
    device_index : device or str or int, optional
        The device; the current one by default.
    """
    return _statistics().max_memory_reserved(_index(device_index))


def memory_stats(device_index: DeviceLike | None = None, /) -> dict[str, Any]:
    """Return all statistics of the allocator under flat keys.

    As `torch.accelerator.memory.memory_stats`. Does not open a device.

    Parameters
    ----------
    device_index : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    dict
        Statistics, as of `forebay.cuda.memory_stats` without `num_oom_rejections`; empty before initialisation.
    """
    stats = _statistics().memory_stats(_index(device_index))
    return OrderedStatistics((key, value) for key, value in stats.items() if not key.startswith(_ONLY_OF_CUDA))


def reset_peak_memory_stats(device_index: DeviceLike | None = None, /) -> None:
    """Reset every peak to the current value.

    As `torch.accelerator.memory.reset_peak_memory_stats`. Does not open a device.

    Parameters
    ----------
    device_index : device or str or int, optional
        The device; the current one by default.
    """
    if accelerator().initialised:
        _statistics().reset_peak_memory_stats(_index(device_index))


def reset_accumulated_memory_stats(device_index: DeviceLike | None = None, /) -> None:
    """Reset all sums ("allocated", "freed") and counters to 0.

    As `torch.accelerator.memory.reset_accumulated_memory_stats`. Does not open a device.

    Parameters
    ----------
    device_index : device or str or int, optional
        The device; the current one by default.
    """
    if accelerator().initialised:
        _statistics().reset_accumulated_memory_stats(_index(device_index))


def empty_cache() -> None:
    """Release cached memory of all devices of the kind that no block uses, after their work has completed.

    As `torch.accelerator.memory.empty_cache`. Does nothing before the kind is initialised.
    """
    _statistics().empty_cache()


def get_memory_info(device_index: DeviceLike | None = None, /) -> tuple[int, int]:
    """Return the free and the total bytes of a device.

    As `torch.accelerator.memory.get_memory_info`. Opens the device.

    Parameters
    ----------
    device_index : device or str or int, optional
        The device; the current one by default.
    """
    index = _get_device_index(device_index, optional=True)
    return _statistics().mem_get_info(index)


# End of the written lines.


def empty_host_cache() -> None:
    """Release cached pinned host memory of the kind that is free. Never waits."""
    pinned = open_device.get_pinned_allocator(accelerator().name)
    if pinned is not None:
        pinned.empty()


def _snapshot(device: DeviceLike | None = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Return a snapshot of the accelerator's memory in the schema of `torch.cuda.memory._snapshot`."""
    return MemoryHistory(accelerator()).snapshot(device, augment_with_fx_traces)
