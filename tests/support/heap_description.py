"""Helpers of the heap scenarios: sizes in MiB, and heaps described as text."""

from __future__ import annotations

from forebay.errors import OutOfMemory

MIB = 1 << 20


def heaps_of(device, pool="shared large", queue=0, unit=MIB):
    """Describe each heap of a pool, oldest first: "32 = 9 live + 2 cached + 21 gap". Sizes in units, else "256B"."""
    heaps = device.layout().get((queue, pool), [])
    return [
        f"{size_text(size, unit)} = {' + '.join(f'{size_text(n, unit)} {state}' for _, n, state, _ in rows)}"
        for _, size, rows in heaps
    ]


def cached_ages(device, pool="shared large", queue=0):
    """Return size in MiB and age of every cached buffer, in the order of heaps and offsets."""
    heaps = device.layout().get((queue, pool), [])
    return [(n // MIB, age) for *_, rows in heaps for _, n, state, age in rows if state == "cached"]


def size_text(nbytes, unit):
    return f"{nbytes}B" if nbytes % unit else str(nbytes // unit)


def reserved_mib(device):
    """Return the MiB in heaps."""
    return device.statistics()["reserved_bytes.current"] / MIB


def allocated_mib(device):
    """Return the MiB in live buffers."""
    return device.statistics()["allocated_bytes.current"] / MIB


def error_line(kind, act):
    """Return the first line of the error that `act` raises; None without an error."""
    try:
        act()
    except kind as error:
        return str(error).partition("\n")[0]
    return None


def oom_line(device, nbytes, **options):
    """Return the first line of the OutOfMemory error of a request; None if it succeeds."""
    return error_line(OutOfMemory, lambda: device.allocate(nbytes, **options))
