"""The memory of a program: that of all its processes together.

# Note [Memory of several processes]
Each process has an allocator of its own, and on a real card their segments share its memory. The peak of a device is
therefore the largest sum of what the processes had reserved at one time, from the times of all changes. A process whose
end has left no trace, as by SIGKILL, is taken to have kept its memory until the end. The times of single blocks are not
recorded: the peak of allocated bytes is at most the sum of the peaks of processes that ran at one time, and at most
what they had reserved. Times on a real card differ: if the peaks of processes that ran at one time would not fit
together, the program is tight. Each process that uses a device has a context on it, too. Rejected: the sum of all
peaks, as processes that run one after the other need the largest only.
Test: tests/interop/torch/processes/test_program_use.py::test_processes_at_different_times_have_the_peak_of_the_largest
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forebay._base.kernel_checks import KernelCheck, merged
from forebay._base.outside_memory import NOTHING, OutsideMemory
from forebay._base.verdicts import Assumption, DeviceEvents, Judgement, ProcessEvents, judge
from forebay.interop.torch.processes.reading import ProcessRecord

__all__ = ["ProcessPeak", "ProgramDevice", "ProgramUse", "program_use"]

_END = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class ProcessPeak:
    """The peaks of a device in one process, in bytes."""

    pid: int
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class ProgramDevice:
    """Use of one device by all processes of a program."""

    events: DeviceEvents  # the sums of all processes
    processes: tuple[ProcessPeak, ...]  # those that used the device, largest first
    is_exact: bool  # the peaks are those of one process. Otherwise that of allocated bytes is the most that it can be.
    # What held the peak of the largest process, as `PeakUse.as_json` returns it; empty if that is not known.
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProgramUse:
    """Use of all devices by all processes of a program."""

    processes: tuple[ProcessEvents, ...]  # the processes; the first one is the program's
    devices: tuple[ProgramDevice, ...]  # the devices that they used, by index
    # What the devices would have done on other cards, by the name of the card, as far as that is known; None if the
    # program has not imported PyTorch, and nothing can depend on the card. See Note [Runs shared by cards].
    cards: Mapping[str, Sequence[Mapping[str, Any]]] | None = None

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of all processes, by line of the program."""
        found: dict[str, Assumption] = {}
        for process in self.processes:
            for each in process.assumptions:
                before = found.get(each.line, each._replace(times=0))
                found[each.line] = before._replace(times=before.times + each.times)
        return tuple(found.values())

    @property
    def kernels(self) -> tuple[KernelCheck, ...]:
        """The kernels of all processes, if they were checked; those with findings first."""
        return merged(each for process in self.processes for each in process.kernels)

    def judge(self, index: int | None = None) -> Judgement:
        """Return the verdict, about all devices or about one: Note [Verdicts are decided from events]."""
        if index is None:
            return judge(self.processes, [each.events for each in self.devices])
        return judge(self.processes, [each.events for each in self.devices if each.events.index == index])


def program_use(records: Sequence[ProcessRecord], outside: OutsideMemory = NOTHING) -> ProgramUse:
    """Add up the records of a program; each process has `outside` on each device besides what it reserves."""
    indices = sorted({device.index for each in records for device in each.events.devices if device.is_used})
    devices = tuple(_device(records, index, outside) for index in indices)
    return ProgramUse(tuple(each.events for each in records), devices, _cards(records))


def _cards(records: Sequence[ProcessRecord]) -> Mapping[str, Sequence[Mapping[str, Any]]] | None:
    """Return what is known about other cards: nothing if several processes share the memory of the card."""
    used = [each for each in records if any(device.is_used for device in each.events.devices)]
    if len(used) > 1 or not all(each.events.is_emulated for each in records):
        return {}
    asked = [each.cards for each in records if each.cards is not None]
    if not asked:
        return {} if used else None
    found = (used[0].cards or {}) if used else max(asked, key=lambda each: len(each["shared"]))
    differing = {name for each in asked for name in each["differing"]}
    return {name: each for name, each in found.get("shared", {}).items() if name not in differing}


def _device(records: Sequence[ProcessRecord], index: int, outside: OutsideMemory) -> ProgramDevice:
    used = [
        (each, device) for each in records for device in each.events.devices if device.index == index and device.is_used
    ]
    largest, most = max(used, key=lambda pair: (pair[1].reserved, pair[1].allocated))
    reserved = max(most.reserved, _peak_of_sum([_reserved(each, index) for each, _ in used]))
    bound = _peak_of_sum([_allocated(each, device) for each, device in used])
    allocated = max(device.allocated for _, device in used)
    together = min(max(allocated, bound), max(reserved, allocated))
    at_most = _peak_of_sum([[(each.started, device.reserved), (each.ended or _END, 0)] for each, device in used])
    contexts = _peak_of_sum([[(each.started, 1), (each.ended or _END, 0)] for each, _ in used])
    refused = [device for _, device in used if device.ooms]
    events = DeviceEvents(
        index,
        max(device.capacity for _, device in used),
        together,
        reserved,
        sum(device.ooms for device in refused),
        refused[-1].failed if refused else 0,
        bool(refused) and all(device.idle_since_oom for device in refused),
        at_most if len(used) > 1 else 0,
        outside.of_processes(contexts),
        _peak_of_sum([[(each.started, _workspaces(each, index)), (each.ended or _END, 0)] for each, _ in used]),
    )
    peaks = sorted(
        (ProcessPeak(each.events.pid, device.allocated, device.reserved) for each, device in used),
        key=lambda peak: (-peak.reserved, -peak.allocated, peak.pid),
    )
    is_exact = (together, reserved) == (allocated, most.reserved)
    return ProgramDevice(events, tuple(peaks), is_exact, largest.details.get(index, {}))


_Steps = list[tuple[int, int]]  # times, and values from then on


def _workspaces(record: ProcessRecord, index: int) -> int:
    return int(record.details.get(index, {}).get("workspaces", 0))


def _reserved(record: ProcessRecord, index: int) -> _Steps:
    steps = [(int(time), int(nbytes)) for time, device, nbytes in record.changes if device == index]
    return [*steps, (record.ended or _END, 0)]


def _allocated(record: ProcessRecord, device: DeviceEvents) -> _Steps:
    first = next((int(time) for time, index, _ in record.changes if index == device.index), record.started)
    return [(first, device.allocated), (record.ended or _END, 0)]


def _peak_of_sum(processes: Sequence[_Steps]) -> int:
    """Return the largest sum of the values of several processes at one time."""
    differences = []
    for steps in processes:
        before = 0
        for time, value in steps:
            differences.append((time, value - before))
            before = value
    total = peak = 0
    for _, difference in sorted(differences):  # of one time, those that free first
        total += difference
        peak = max(peak, total)
    return peak
