"""The devices that `forebay run` records: the CPU device, emulated devices, and all others that the program opens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forebay._base.config import CPU_MEMORY, EMULATE, UNLIMITED
from forebay.snapshot.formats.known_notes import SAMPLED
from forebay.snapshot.formats.resident_note import RESIDENT, ResidentGrowth

if TYPE_CHECKING:
    from forebay.records.model import Snapshot

CPU = "cpu"
SMALL_ARRAYS = "small arrays (sampled)"  # in place of a device's name


@dataclass(frozen=True, slots=True)
class Sampling:
    """Options of the sample of arrays that NumPy allocates itself."""

    mean: int  # bytes of arrays for each chosen one
    seed: int | None = None  # None: a random number


def start(memory: int | None, entries: int | None, sampling: Sampling | None = None) -> None:
    """Allocate NumPy's arrays on the CPU device, and record it and each device that is opened later.

    With a history, the arrays that NumPy allocates itself are sampled if `sampling` says how. `memory` is the capacity
    of the CPU device, by default as FOREBAY_CPU_MEMORY or unlimited. `entries` is the size of the history; None: no
    history. Raises as the runtime does. See Note [Settings of a program].
    """
    from forebay import memory as runtime
    from forebay.backends import EMULATED
    from forebay.interop import numpy
    from forebay.runtime.history import recording
    from forebay.runtime.settings import process_settings

    if memory is not None or not os.environ.get(CPU_MEMORY.name, "").strip():
        runtime.set_capacity(memory or UNLIMITED, CPU)
    numpy.install(CPU)
    numpy.other_arrays(reset=True)
    process_settings.read_again()
    if entries is None:
        return
    _record_cpu(entries, sampling)
    for kind in EMULATED:
        recording.set_whole(kind, lambda pool: recording.start_whole(pool, entries))


def _record_cpu(entries: int, sampling: Sampling | None) -> None:
    from forebay.interop import array_samples
    from forebay.runtime.devices.current import opened_for
    from forebay.runtime.history import recording

    recording.start_whole(opened_for(CPU).allocator, entries)
    if sampling is not None:
        array_samples.start(entries, mean=sampling.mean, seed=sampling.seed)


def restart(entries: int | None, sampling: Sampling | None = None) -> None:
    """Record anew in a forked child, which has a copy of the CPU device; other devices cannot be used there.

    The arrays of the parent count as allocated before the recording.
    """
    from forebay import memory
    from forebay.interop import numpy

    numpy.install(CPU)
    numpy.other_arrays(reset=True)
    memory.reset_peak_memory_stats(CPU)
    memory.reset_accumulated_memory_stats(CPU)
    if entries is not None:
        _record_cpu(entries, sampling)


def snapshots(notes: Mapping[str, Any], *, opened_only: bool = False) -> list[Snapshot]:
    """Return a snapshot of each open device, and of the emulated devices that the program did not open.

    The CPU device is left out if others are reported and nothing was allocated on it. The sample of small arrays is
    first if the program allocated nothing else, or the last one.
    """
    from forebay import backends
    from forebay.interop import array_samples
    from forebay.runtime.devices import open_device
    from forebay.runtime.memory.device_snapshot import take_snapshot
    from forebay.spi import Describes

    opened = {str(each.device): take_snapshot(each, notes) for each in open_device.open_devices().devices}
    for name, found in opened.items():
        if found.capacity >= UNLIMITED:
            opened[name] = replace(found, capacity=0)
    for kind in () if opened_only else {each.kind for each in EMULATE.value()}:
        driver = backends.driver(kind)
        for index in range(driver.count()):
            capacity = driver.describe(index).total_bytes if isinstance(driver, Describes) else 0
            opened.setdefault(f"{kind}:{index}", _unused(f"{kind}:{index}", capacity, notes))
    if len(opened) > 1 and not opened[CPU].stats["allocation.all.allocated"]:
        del opened[CPU]
    sample = array_samples.snapshot(SMALL_ARRAYS, notes)
    devices = [opened[name] for name in sorted(opened)]
    if sample is None:
        return devices
    is_rest = any(each.stats["allocation.all.allocated"] for each in devices)
    return [*devices, sample] if is_rest else [sample, *devices]


def with_growth(snapshots: list[Snapshot], growth: ResidentGrowth | None) -> list[Snapshot]:
    """Return the snapshots with a note about the growth of resident memory."""
    if growth is None:
        return snapshots
    return [replace(each, notes={**each.notes, RESIDENT: growth.as_json()}) for each in snapshots]


def is_sample(snapshot: Snapshot) -> bool:
    """Return True for the sample of small arrays, which is no device."""
    return SAMPLED in snapshot.notes


def _unused(device: str, capacity: int, notes: Mapping[str, Any]) -> Snapshot:
    """Return the snapshot of a device that was never opened."""
    import time

    import numpy as np

    from forebay.records.model import BLOCK, ENTRY, FRAME, SEGMENT, STACK, Snapshot

    return Snapshot(
        device=device,
        capacity=capacity,
        taken_at_ns=time.time_ns(),
        segments=np.empty(0, SEGMENT),
        blocks=np.empty(0, BLOCK),
        trace=np.empty(0, ENTRY),
        stacks=np.zeros(1, STACK),
        frames=np.empty(0, FRAME),
        strings=(),
        stats={"allocation.all.allocated": 0},
        notes=notes,
    )
