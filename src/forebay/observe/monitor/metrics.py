"""The figures as metrics: names, units and values, for Prometheus and OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from forebay.observe.monitor.figures import DeviceFigures, ProcessFigures, Readings
from forebay.observe.monitor.sensors import MachineGpu

__all__ = ["METRICS", "Metric", "Sample", "samples"]

_Number = int | float


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str  # name without the prefix "forebay"
    unit: str  # "bytes", "ratio", "celsius", "watts", "hertz", or "" for a number
    text: str
    counter: bool = False  # whether the value only increases


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of a metric."""

    metric: Metric
    labels: tuple[tuple[str, str], ...]  # names and values of its labels
    value: float


_OF_DEVICE: dict[Metric, Callable[[DeviceFigures], _Number | None]] = {
    Metric("memory_allocated", "bytes", "Memory in live blocks."): lambda each: each.allocated,
    Metric("memory_allocated_peak", "bytes", "Peak of the memory in live blocks."): lambda each: each.peak,
    Metric("memory_reserved", "bytes", "Memory in segments, live or cached."): lambda each: each.reserved,
    Metric("memory_capacity", "bytes", "Memory of the device, if it is limited."): lambda each: each.capacity,
    Metric("allocations", "", "Allocations.", counter=True): lambda each: each.allocations,
    Metric("frees", "", "Frees.", counter=True): lambda each: each.frees,
    Metric("allocation_retries", "", "Allocations repeated after the cache was emptied.", counter=True): (
        lambda each: each.retries
    ),
    Metric("out_of_memory", "", "Allocations refused for lack of memory.", counter=True): lambda each: each.ooms,
    Metric("queues", "", "Queues of the device."): lambda each: each.streams,
    Metric("busy_queues", "", "Queues with pending work."): lambda each: each.busy_streams,
}
_OF_SENSORS: dict[Metric, Callable[[Readings], _Number | None]] = {
    Metric("device_memory_used", "bytes", "Device memory in use by all processes."): lambda each: each.memory_used,
    Metric("device_memory", "bytes", "Device memory in total."): lambda each: each.memory_total,
    Metric("device_busy", "ratio", "Fraction of the last second in which the device ran work."): lambda each: each.busy,
    Metric("device_temperature", "celsius", "Temperature."): lambda each: each.temperature,
    Metric("device_power", "watts", "Power draw."): lambda each: None if each.power is None else each.power / 1000,
    Metric("device_clock", "hertz", "Clock rate of the multiprocessors."): (
        lambda each: None if each.clock is None else each.clock * 1_000_000
    ),
}
_RESIDENT = Metric("process_resident_memory", "bytes", "Resident memory of the process.")
_PROCESSES = Metric("processes", "", "Processes whose figures were read.")
METRICS = (*_OF_DEVICE, *_OF_SENSORS, _RESIDENT, _PROCESSES)


def samples(processes: Iterable[ProcessFigures], gpus: Iterable[MachineGpu] = ()) -> Iterator[Sample]:
    """Yield the values of all metrics that are known.

    Those of processes have the labels pid, program, device, name and emulated; those of the machine's GPUs have the
    same labels, and the name is the UUID.
    """
    number = 0
    for process in processes:
        number += 1
        own = (("pid", str(process.pid)), ("program", process.program))
        yield Sample(_RESIDENT, own, process.resident)
        for device in process.devices:
            emulated = "true" if device.emulated else "false"
            labels = (*own, ("device", device.device), ("name", device.name), ("emulated", emulated))
            yield from _known(_OF_DEVICE, device, labels)
            yield from _known(_OF_SENSORS, device.readings, labels)
    for gpu in gpus:
        own = (("pid", ""), ("program", ""))
        labels = (*own, ("device", f"gpu:{gpu.index}"), ("name", gpu.uuid), ("emulated", "false"))
        yield from _known(_OF_SENSORS, gpu.readings, labels)
    yield Sample(_PROCESSES, (), number)


def _known(
    table: dict[Metric, Callable[..., _Number | None]], source: object, labels: tuple[tuple[str, str], ...]
) -> Iterator[Sample]:
    for metric, value_of in table.items():
        if (value := value_of(source)) is not None:
            yield Sample(metric, labels, value)
