"""What the scenarios of heaps have in common: sizes, and heaps in words."""

from __future__ import annotations

from forebay.errors import OutOfMemory

MIB = 1 << 20


def drawn(device, pool="shared large", queue=0, unit=MIB):
    """Each heap of a pool, oldest first: "32 = 9 live + 2 cached + 21 room". Sizes in the unit, or "256B"."""
    heaps = device.picture().get((queue, pool), [])
    return [
        f"{words(size, unit)} = {' + '.join(f'{words(n, unit)} {state}' for _, n, state, _ in rows)}"
        for _, size, rows in heaps
    ]


def ages(device, pool="shared large", queue=0):
    """Size in MiB and age of every cached buffer, in the order of heaps and offsets."""
    heaps = device.picture().get((queue, pool), [])
    return [(n // MIB, age) for *_, rows in heaps for _, n, state, age in rows if state == "cached"]


def words(nbytes, unit):
    return f"{nbytes}B" if nbytes % unit else str(nbytes // unit)


def reserved(device):
    """MiB in heaps."""
    return device.numbers()["reserved_bytes.current"] / MIB


def allocated(device):
    """MiB in buffers that somebody has."""
    return device.numbers()["allocated_bytes.current"] / MIB


def said(kind, act):
    """The first line of an error of that kind; None if there was none."""
    try:
        act()
    except kind as error:
        return str(error).partition("\n")[0]
    return None


def refused(device, nbytes, **options):
    """What is said of a request for which there is no memory; None if there was."""
    return said(OutOfMemory, lambda: device.allocate(nbytes, **options))
