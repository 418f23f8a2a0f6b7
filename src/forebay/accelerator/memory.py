"""The accelerator's memory. (`torch.accelerator.memory`)"""

from __future__ import annotations

from typing import Any

from forebay.accelerator._kind import accelerator
from forebay.accelerator._utils import _get_device_index
from forebay.faces.kind import Kind
from forebay.faces.memory_statistics import MemoryStatistics
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


def _statistics() -> MemoryStatistics:
    return MemoryStatistics(accelerator())


def _index(device: Any) -> Any:
    """None before the kind's first use: then nothing is there, and asking which is current would be that use."""
    kind: Kind = accelerator()
    return _get_device_index(device, optional=True) if kind.initialised or device is not None else None


def empty_cache() -> None:
    """Give idle memory back to all devices of the kind, once their work is done. Nothing before the first use."""
    _statistics().empty_cache()


def empty_host_cache() -> None:
    """Give back to the system all pinned host memory of the kind that is free. Never waits."""
    pinned = open_device.pinned_if(accelerator().name)
    if pinned is not None:
        pinned.empty()


def get_memory_info(device_index: Any = None, /) -> tuple[int, int]:
    """Bytes free on the device, and bytes in all. Opens the device; DeviceError where there is none."""
    return _statistics().mem_get_info(_get_device_index(device_index, optional=True))


def memory_stats(device_index: Any = None, /) -> dict[str, Any]:
    """Everything the allocator counts, by flat keys; nothing before the kind's first use.

    As in PyTorch without `num_oom_rejections`, which CUDA's face has.
    """
    stats = _statistics().memory_stats(_index(device_index))
    stats.pop("num_oom_rejections", None)
    return stats


def memory_allocated(device_index: Any = None, /) -> int:
    """Bytes in blocks handed out now; 0 before the kind's first use."""
    return _statistics().memory_allocated(_index(device_index))


def max_memory_allocated(device_index: Any = None, /) -> int:
    """The most bytes that were in blocks handed out, since the start or the last `reset_peak_memory_stats`."""
    return _statistics().max_memory_allocated(_index(device_index))


def memory_reserved(device_index: Any = None, /) -> int:
    """Bytes in segments taken from the device now, handed out or not; 0 before the kind's first use."""
    return _statistics().memory_reserved(_index(device_index))


def max_memory_reserved(device_index: Any = None, /) -> int:
    """The most bytes that were in segments, since the start or the last `reset_peak_memory_stats`."""
    return _statistics().max_memory_reserved(_index(device_index))


def reset_peak_memory_stats(device_index: Any = None, /) -> None:
    """Every peak becomes what is there now."""
    _statistics().reset_peak_memory_stats(_index(device_index))


def reset_accumulated_memory_stats(device_index: Any = None, /) -> None:
    """All sums ("allocated", "freed") and counters become 0."""
    _statistics().reset_accumulated_memory_stats(_index(device_index))
