"""What the sensors of an emulated device say: what this machine knows, and for the rest a model.

Busy is how much of the last second its queues were at work, in parts of 50 ms; a part in which several were counts as
what they were together, at most whole. Memory counts as used while they are, too: what queues do here is to move it.
Temperature and clock are the machine's own where psutil is installed (extra `telemetry`) and finds sensors. If not, and
for power, the readings go from the profile's idle to its busiest as the share does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Protocol
from weakref import WeakSet

from forebay.errors import DeviceError, Forked, Unsupported, WrongState

__all__ = ["EmulatedSensors", "EmulatedTelemetry", "Watched", "busy_share"]

_SLOT = 50_000_000  # nanoseconds, as native/queue/busy_meter.hpp has it


class _Meter(Protocol):
    def busy(self) -> list[int]: ...  # nanoseconds at work in each of the last slots


class Watched(Protocol):
    """What the readings need of an open port."""

    def queues(self) -> Iterable[_Meter]: ...
    def memory_info(self) -> tuple[int, int]: ...


class EmulatedTelemetry:
    """A part of a Driver: it says which devices there are, and shows every port it opens to `watch`."""

    def __init__(self, kind: str, uuids: Iterable[str], total_bytes: int, readings: Mapping[str, int]) -> None:
        self._sensors = [
            EmulatedSensors(f"{kind}:{index}", uuid, total_bytes, readings) for index, uuid in enumerate(uuids)
        ]

    def machine_count(self) -> int:
        return len(self._sensors)

    def sensors(self, index: int) -> EmulatedSensors:
        """DeviceError where there is no such device."""
        if index not in range(len(self._sensors)):
            raise DeviceError(f"Invalid Argument: there is no device {index}", code=2, call="sensors")
        return self._sensors[index]


class EmulatedSensors:
    """Of one device; it holds no port, and a port that is closed or another process's holds nothing."""

    def __init__(self, name: str, uuid: str, total_bytes: int, readings: Mapping[str, int]) -> None:
        self._name = name
        self._uuid = uuid
        self._total = total_bytes
        self._readings = readings
        self._ports: WeakSet[Any] = WeakSet()

    def watch(self, port: Watched) -> None:
        self._ports.add(port)

    def uuid(self) -> str:
        return self._uuid

    def memory(self) -> tuple[int, int]:
        return sum(self._held()), self._total

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
        """This one, if it has opened the device; of others nothing is known."""
        held = self._held()
        return {os.getpid(): sum(held)} if held else {}

    def _held(self) -> list[int]:
        """The bytes that each port has reserved."""
        held = []
        for port in list(self._ports):
            try:
                free, total = port.memory_info()
            except (WrongState, Forked):
                continue
            held.append(total - free)
        return held

    def _share(self) -> float:
        return busy_share([queue.busy() for port in list(self._ports) for queue in port.queues()])

    def _between(self, idle: str, busiest: str) -> int:
        if idle not in self._readings:
            raise Unsupported(f"{self._name} has no such sensor: its profile says nothing of one", ability="Telemetry")
        low, high = self._readings[idle], self._readings[busiest]
        return low + round((high - low) * self._share())


def busy_share(queues: Iterable[list[int]]) -> float:
    """From 0 to 1, of the slots of several queues; one without slots counts nothing.

    >>> busy_share([[50_000_000, 0, 30_000_000, 0], [50_000_000, 0, 30_000_000, 50_000_000]])
    0.75
    """
    together = [min(sum(slot), _SLOT) for slot in zip(*filter(None, queues), strict=True)]
    return sum(together) / (_SLOT * len(together)) if together else 0.0


def _machine_temperature() -> int:
    """Of its hottest part, in °C; 0 where nobody knows."""
    read = getattr(_psutil(), "sensors_temperatures", None)  # there are systems without that function
    found: Mapping[str, Any] = read() if read else {}
    return round(max((sensor.current for sensors in found.values() for sensor in sensors), default=0))


def _machine_clock() -> int:
    """In MHz; 0 where nobody knows."""
    found = getattr(_psutil(), "cpu_freq", lambda: None)()
    return round(found.current) if found else 0


def _psutil() -> Any:
    try:
        import psutil
    except ImportError:
        return None
    return psutil
