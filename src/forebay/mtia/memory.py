"""Memory statistics and history of MTIA devices. (`torch.mtia.memory`)

Statistics do not initialise MTIA: before its first use they are 0 or empty. Sizes are in bytes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from forebay._base.device_spec import DeviceLike
from forebay.mtia._kind import MTIA
from forebay.names import oom_observers
from forebay.names.memory_history import MemoryHistory
from forebay.names.memory_statistics import MemoryStatistics
from forebay.runtime.allocator.metrics import ALLOCATED_BYTES, RESERVED_BYTES
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
memory_allocated: Final = _STATISTICS.memory_allocated
max_memory_allocated: Final = _STATISTICS.max_memory_allocated
empty_cache: Final = _STATISTICS.empty_cache

_COUNTED = ("allocated_bytes", "peak_bytes", "reserved_bytes", "peak_reserved_bytes", "num_ooms", "num_alloc_retries")

_HISTORY = MemoryHistory(MTIA)


def memory_stats(device: DeviceLike | None = None) -> dict[str, Any]:
    """Return the allocator statistics of a device.

    As `torch.mtia.memory_stats`. Does not initialise MTIA.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    dict
        Under "dram": PyTorch's `allocated_bytes` and `peak_bytes`, and forebay's `reserved_bytes`,
        `peak_reserved_bytes`, `num_ooms` and `num_alloc_retries`. Empty before MTIA's first use.

    Raises
    ------
    ForebayError
        If the device does not exist.

    Examples
    --------
    >>> import forebay, forebay.mtia as mtia
    >>> with forebay.emulate("mtia"):
    ...     tensor = forebay.zeros(1000, device="mtia")
    ...     mtia.memory_stats()["dram"]["allocated_bytes"]
    4096
    """
    if not MTIA.initialised:
        return {}
    opened = _STATISTICS.find_device(device)
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


# Written by tools/write_names.py from tools/names/memory.toml: edit the table, not these lines.


def reset_peak_memory_stats(device: DeviceLike | None = None) -> None:
    """Set every peak to the current value; do nothing before MTIA's first use.

    As `torch.mtia.reset_peak_memory_stats`.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    ForebayError
        If the device does not exist.
    """
    if MTIA.initialised:
        _STATISTICS.reset_peak_memory_stats(device)


def snapshot() -> dict[str, Any]:
    """Return a snapshot of the memory of all MTIA devices.

    As `torch.mtia.snapshot`. Does not initialise MTIA.

    Returns
    -------
    dict
        Segments, blocks and history in PyTorch's schema, as `forebay.cuda.memory._snapshot`. `forebay replay` and
        PyTorch's viewers read the pickled dict.

    Raises
    ------
    ForebayError
        If there is no MTIA device.
    """
    MTIA.require_backend("memorySnapshot")
    return _HISTORY.snapshot()


def attach_out_of_memory_observer(observer: Callable[[int, int, int, int], None]) -> None:
    """Register a function that is called before OutOfMemory is raised on any MTIA device.

    As `torch.mtia.attach_out_of_memory_observer`. The observer remains registered until the process or the active
    emulation ends.

    Parameters
    ----------
    observer : Callable
        Called as `observer(index, requested, total, free)`: the device index, then bytes. `total` is the device's
        memory, or the limit if one is set. An exception from the observer is raised instead of OutOfMemory.

    Raises
    ------
    TypeError
        If `observer` is not callable.
    ForebayError
        If there is no MTIA device.
    """
    oom_observers.attach(MTIA, observer)


def record_memory_history(enabled: str | None = "all", stacks: str = "python", max_entries: int = 0) -> None:
    """Start, change or stop recording of the memory history; do nothing before MTIA's first use.

    As `torch.mtia.record_memory_history`. Before MTIA's first use the arguments are not checked either.

    Parameters
    ----------
    enabled : {"all", "state", None}, default "all"
        "all" keeps `max_entries` entries, "state" the newest one, None stops the recording.
    stacks : {"python", "cpp"}, default "python"
        Both record Python frames.
    max_entries : int, default 0
        Number of entries per device; 0 is unlimited.

    Raises
    ------
    RuntimeError
        If `enabled` or `stacks` is unknown.
    TypeError
        If `max_entries` is not an int.
    ValueError
        If `max_entries` is negative.
    """
    if MTIA.initialised:
        limit = min(operator.index(max_entries), UNLIMITED)
        _HISTORY.start(enabled, "all", "all" if stacks == "cpp" else stacks, limit or UNLIMITED)


# End of the written lines.
