"""Sensor readings of devices, and the GPUs that the machine's sensor library lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from forebay._base.untrusted import printable
from forebay.observe.monitor.figures import Readings
from forebay.observe.telemetry import amdsmi, nvml
from forebay.spi import Sensors, Telemetry

__all__ = ["MachineGpu", "machine_gpus", "read"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class MachineGpu:
    """A GPU of the machine, whether or not a process uses it."""

    index: int  # index among the GPUs of its library
    uuid: str
    readings: Readings
    processes: dict[int, int | None]  # process id to bytes of device memory, None if unknown


def read(sensors: Sensors) -> Readings:
    """Read all sensors of a device; those that fail are None."""
    used, total = _or_none(sensors.memory) or (None, None)
    busy = _or_none(sensors.busy)
    return Readings(
        memory_used=used,
        memory_total=total,
        busy=None if busy is None else busy[0] / 100,
        temperature=_or_none(sensors.temperature),
        power=_or_none(sensors.power),
        clock=_or_none(sensors.clock),
    )


def machine_gpus() -> list[MachineGpu]:
    """Return the GPUs that NVIDIA's or AMD's library lists; none if its driver cannot be reached. Opens no device."""
    libraries: tuple[Callable[[], Telemetry], ...] = (nvml.Nvml, amdsmi.Amdsmi)
    loaded = [telemetry for library in libraries if (telemetry := _or_none(library)) is not None]
    return [gpu for telemetry in loaded for gpu in _gpus(telemetry)]


def _gpus(telemetry: Telemetry) -> Iterator[MachineGpu]:
    for index in range(_or_none(telemetry.machine_count) or 0):
        sensors = _or_none(partial(telemetry.sensors, index))
        if sensors is not None:
            processes = dict(_or_none(sensors.processes) or {})
            yield MachineGpu(index, printable(_or_none(sensors.uuid) or ""), read(sensors), processes)


def _or_none(call: Callable[[], _T]) -> _T | None:
    """Return the result, or None if it fails. Libraries of sensors have exceptions of their own."""
    try:
        return call()
    except Exception:  # noqa: BLE001 - see above; a sensor that fails must not hide the others
        return None
