"""A device's memory: what is allocated, what is reserved, the history, snapshots. PyTorch's names where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.device import Device
from penstock.runtime import history, statistics
from penstock.runtime.current import opened_for
from penstock.sizes import parse_bytes
from penstock.snapshot.model import Snapshot

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "record_history",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_capacity",
    "snapshot",
]


def memory_allocated(device: Device | str | int | None = None) -> int:
    """Bytes in blocks handed out now, each rounded up as the allocator does. Opens the device."""
    return opened_for(device).allocator.current(statistics.ALLOCATED_BYTES)


def max_memory_allocated(device: Device | str | int | None = None) -> int:
    """The most `memory_allocated` has been since the start or `reset_peak_memory_stats`."""
    return opened_for(device).allocator.peak(statistics.ALLOCATED_BYTES)


def memory_reserved(device: Device | str | int | None = None) -> int:
    """Bytes in segments taken from the device now, handed out or not."""
    return opened_for(device).allocator.current(statistics.RESERVED_BYTES)


def max_memory_reserved(device: Device | str | int | None = None) -> int:
    """The most `memory_reserved` has been since the start or `reset_peak_memory_stats`."""
    return opened_for(device).allocator.peak(statistics.RESERVED_BYTES)


def memory_stats(device: Device | str | int | None = None) -> dict[str, int]:
    """Everything the allocator counts, as PyTorch's flat keys ("allocated_bytes.all.current").

    >>> import penstock
    >>> block = penstock.allocate(1000, "host:0")
    >>> penstock.memory.memory_stats("host:0")["requested_bytes.all.current"] >= 1000
    True
    """
    return statistics.flat(opened_for(device).allocator)


def reset_peak_memory_stats(device: Device | str | int | None = None) -> None:
    """Every peak becomes what is there now."""
    opened_for(device).allocator.reset_peaks()


def reset_accumulated_memory_stats(device: Device | str | int | None = None) -> None:
    """Everything counted since the start becomes 0: "allocated", "freed", retries, ooms."""
    opened_for(device).allocator.reset_accumulated()


def empty_cache(device: Device | str | int | None = None) -> None:
    """Give back to the device all segments of which nothing is in use.

    Waits for all work on the device, which may still be at it there.
    """
    opened_for(device).allocator.empty()


def mem_get_info(device: Device | str | int | None = None) -> tuple[int, int]:
    """Bytes free on the device, bytes in all; what others reserved there is not free."""
    return opened_for(device).port.memory_info()


def set_capacity(capacity: int | str, device: Device | str | int | None = None) -> None:
    """How many bytes the device has in all: an int, or a size like "16MiB". Opens the device.

    Raises Unsupported where the memory is what it is, WrongState below what is reserved now.
    """
    nbytes = parse_bytes(capacity) if isinstance(capacity, str) else capacity
    opened_for(device).set_capacity(nbytes)


def record_history(
    max_entries: int | None = 1_000_000, *, depth: int = 64, device: Device | str | int | None = None
) -> None:
    """Record every allocation and free with its Python stack; None stops and forgets.

    The newest `max_entries` are kept (40 bytes each), and of each stack the innermost `depth` frames, at most 256.
    """
    if max_entries is not None and max_entries < 1:
        raise ValueError(f"max_entries is at least 1, or None to stop; got {max_entries}")
    if depth < 0:
        raise ValueError(f"depth is a number of frames, not {depth}")
    opened_for(device).allocator.record(max_entries or 0, depth)


def snapshot(device: Device | str | int | None = None, *, notes: Mapping[str, Any] | None = None) -> Snapshot:
    """Segments, blocks, statistics and the recorded history of this moment. `notes` (JSON-able) go along."""
    opened = opened_for(device)
    _, total = opened.port.memory_info()
    allocator = opened.allocator
    return history.snapshot(allocator, str(opened.device), total, stats=statistics.flat(allocator), notes=notes)
