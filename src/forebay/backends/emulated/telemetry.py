"""Sensors of emulated devices: readings of this machine where it has them, otherwise a model.

Utilization is the fraction of the last second in which queues ran work, in slots of 50 ms; in each slot the times of
all queues are added, up to 50 ms. Memory utilization is the same number, as queues mostly move memory. Temperature and
clock are this machine's if psutil is installed (extra `telemetry`) and finds sensors. Otherwise, and for power, a
reading lies between the profile's idle and busy values in proportion to the utilization.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Protocol
from weakref import WeakSet

from forebay.errors import DeviceError, Forked, Unsupported, WrongState

__all__ = ["EmulatedSensors", "EmulatedTelemetry", "MonitoredPort", "busy_share"]

_SLOT = 50_000_000  # nanoseconds, as native/queue/busy_meter.hpp has it


class _Meter(Protocol):
    def busy(self) -> list[int]: ...  # nanoseconds of work in each of the last slots


class MonitoredPort(Protocol):
    """The part of an open port that the sensors use."""

    def queues(self) -> Iterable[_Meter]: ...
    def memory_info(self) -> tuple[int, int]: ...


class EmulatedTelemetry:
    """Base of drivers with the ability `Telemetry`. The driver calls `EmulatedSensors.add_port` for each open port."""

    def __init__(self, kind: str, uuids: Iterable[str], total_bytes: int, readings: Mapping[str, int]) -> None:
        self.set_sensors(kind, uuids, total_bytes, readings)

    def set_sensors(self, kind: str, uuids: Iterable[str], total_bytes: int, readings: Mapping[str, int]) -> None:
        """Make the sensors of the devices."""
        self._sensors = [
            EmulatedSensors(f"{kind}:{index}", uuid, total_bytes, readings) for index, uuid in enumerate(uuids)
        ]

    def machine_count(self) -> int:
        return len(self._sensors)

    def sensors(self, index: int) -> EmulatedSensors:
        if index not in range(len(self._sensors)):
            raise DeviceError(f"Invalid Argument: there is no device {index}", code=2, call="sensors")
        return self._sensors[index]


class EmulatedSensors:
    """Sensors of one device. Ports are referenced weakly; closed ports and those of a parent process do not count."""

    def __init__(self, name: str, uuid: str, total_bytes: int, readings: Mapping[str, int]) -> None:
        self._name = name
        self._uuid = uuid
        self._total = total_bytes
        self._readings = readings
        self._ports: WeakSet[Any] = WeakSet()

    def add_port(self, port: MonitoredPort) -> None:
        self._ports.add(port)

    def uuid(self) -> str:
        return self._uuid

    def memory(self) -> tuple[int, int]:
        return sum(self._reserved()), self._total

    def busy(self) -> tuple[int, int]:
        percent = round(100 * self._share())
        return percent, percent

    def temperature(self) -> int:
        return _machine_temperature() or self._between("idle_temperature", "busy_temperature")

    def power(self) -> int:
        return self._between("idle_power", "max_power")

    def clock(self) -> int:
        return _machine_clock() or self._between("idle_clock", "max_clock")

    def processes(self) -> Mapping[int, int | None]:
        """Return this process, if it has opened the device; other processes are unknown."""
        reserved = self._reserved()
        return {os.getpid(): sum(reserved)} if reserved else {}

    def _reserved(self) -> list[int]:
        """Return the reserved bytes of each usable port."""
        reserved = []
        for port in list(self._ports):
            try:
                free, total = port.memory_info()
            except (WrongState, Forked):
                continue
            reserved.append(total - free)
        return reserved

    def _share(self) -> float:
        return busy_share([queue.busy() for port in list(self._ports) for queue in port.queues()])

    def _between(self, idle: str, busy: str) -> int:
        if idle not in self._readings:
            raise Unsupported(f"{self._name} has no such sensor: its profile does not define one", ability="Telemetry")
        low, high = self._readings[idle], self._readings[busy]
        return low + round((high - low) * self._share())


def busy_share(queues: Iterable[list[int]]) -> float:
    """Return the utilization, 0 to 1, from the slots of several queues; a queue without slots does not count.

    >>> busy_share([[50_000_000, 0, 30_000_000, 0], [50_000_000, 0, 30_000_000, 50_000_000]])
    0.75
    """
    sums = [min(sum(slot), _SLOT) for slot in zip(*filter(None, queues), strict=True)]
    return sum(sums) / (_SLOT * len(sums)) if sums else 0.0


def _machine_temperature() -> int:
    """Return the highest temperature in °C; 0 if unknown."""
    read = getattr(_psutil(), "sensors_temperatures", None)  # missing on some systems
    found: Mapping[str, Any] = read() if read else {}
    return round(max((sensor.current for sensors in found.values() for sensor in sensors), default=0))


def _machine_clock() -> int:
    """Return the CPU clock in MHz; 0 if unknown."""
    found = getattr(_psutil(), "cpu_freq", lambda: None)()
    return round(found.current) if found else 0


def _psutil() -> Any:
    try:
        import psutil
    except ImportError:
        return None
    return psutil
