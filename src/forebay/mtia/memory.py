"""The memory of MTIA devices. (`torch.mtia.memory`)

Before MTIA's first use there is nothing to tell, and asking does not make it: statistics are 0 or empty. Sizes are
bytes; `device` is an index, a device, its name, or None for the current one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from forebay.faces.memory_history import MemoryHistory
from forebay.faces.memory_statistics import MemoryStatistics
from forebay.mtia._kind import MTIA
from forebay.runtime.allocator import oom_observers
from forebay.runtime.allocator.statistics import ALLOCATED_BYTES, RESERVED_BYTES
from forebay.runtime.devices import open_device
from forebay.runtime.history.recording import UNLIMITED

__all__ = [
    "attach_out_of_memory_observer",
    "empty_cache",
    "max_memory_allocated",
    "memory_allocated",
    "memory_stats",
    "record_memory_history",
    "reset_peak_memory_stats",
    "snapshot",
]

_STATISTICS = MemoryStatistics(MTIA)
memory_allocated = _STATISTICS.memory_allocated
max_memory_allocated = _STATISTICS.max_memory_allocated
empty_cache = _STATISTICS.empty_cache

_COUNTED = ("allocated_bytes", "peak_bytes", "reserved_bytes", "peak_reserved_bytes", "num_ooms", "num_alloc_retries")

_HISTORY = MemoryHistory(MTIA)


def memory_stats(device: Any = None) -> dict[str, Any]:
    """What the allocator counts of the device's memory, by the name of that memory: there is "dram".

    `allocated_bytes` and `peak_bytes` are PyTorch's keys; `reserved_bytes`, `peak_reserved_bytes`, `num_ooms` and
    `num_alloc_retries` are forebay's. Nothing before MTIA's first use. (`torch.mtia.memory_stats`)

    >>> import forebay, forebay.mtia as mtia
    >>> with forebay.emulate("mtia"):
    ...     tensor = forebay.zeros(1000, device="mtia")
    ...     mtia.memory_stats()["dram"]["allocated_bytes"]
    4096
    """
    if not MTIA.initialised:
        return {}
    opened = _STATISTICS.counted(device)
    if opened is None:
        return {"dram": dict.fromkeys(_COUNTED, 0)}
    allocator = opened.allocator
    numbers = (
        allocator.current(ALLOCATED_BYTES),
        allocator.peak(ALLOCATED_BYTES),
        allocator.current(RESERVED_BYTES),
        allocator.peak(RESERVED_BYTES),
        allocator.num_ooms,
        allocator.num_alloc_retries,
    )
    return {"dram": dict(zip(_COUNTED, numbers, strict=True))}


def reset_peak_memory_stats(device: Any = None) -> None:
    """Every peak becomes what is there now. Nothing before MTIA's first use. (`torch.mtia.reset_peak_memory_stats`)"""
    if MTIA.initialised:
        _STATISTICS.reset_peak_memory_stats(device)


def record_memory_history(enabled: str | None = "all", stacks: str = "python", max_entries: int = 0) -> None:
    """Begin, change or (`enabled` None) end the recording of what is allocated. (`torch.mtia.record_memory_history`)

    "state" keeps the newest entry, "all" as many as `max_entries`, where 0 is without a limit. `stacks` are "python" or
    "cpp": Python's in either case. Nothing, whatever the words, before MTIA's first use; then RuntimeError for unknown
    ones, TypeError for what is no number, ValueError for a negative one.
    """
    if MTIA.initialised:
        most = min(operator.index(max_entries), UNLIMITED)
        _HISTORY.record(enabled, "all", "all" if stacks == "cpp" else stacks, most or UNLIMITED)


def snapshot() -> dict[str, Any]:
    """Segments, blocks and history of all MTIA devices, as `forebay.cuda.memory._snapshot` gives them.

    Pickled, `forebay replay` and PyTorch's viewers read it. (`torch.mtia.snapshot`)
    """
    MTIA.hook("memorySnapshot")
    return _HISTORY.snapshot()


def attach_out_of_memory_observer(observer: Callable[[int, int, int, int], None]) -> None:
    """Call `observer(index, asked, total, free)`, all but the index bytes, before OutOfMemory is raised on any device.

    `total` is the device's memory, or the limit. It stays as long as the process, or the emulation that is under way.
    What it raises is raised instead. TypeError for what cannot be called. (`torch.mtia.attach_out_of_memory_observer`)
    """
    if not callable(observer):
        raise TypeError(f"an observer is called with four ints; {type(observer).__name__} cannot be called")
    MTIA.hook("attachOutOfMemoryObserver")
    opened = open_device.opened_of(MTIA.name).devices
    oom_observers.attach(MTIA.name, observer, [each.allocator for each in opened])
