"""Readings of Apple's GPU from public interfaces: Metal, NSProcessInfo, and the times of forebay's own work.

macOS publishes neither temperature, power and clock of the GPU nor the use by other processes. It publishes how far
the system limits its speed because of heat, the thermal state.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from forebay.backends.metal.calls import autorelease_pool, foundation
from forebay.errors import ForebayError, Unsupported

if TYPE_CHECKING:
    from forebay.backends.metal.port import MetalPort

__all__ = ["MetalSensors", "thermal_state"]

_THERMAL_STATES = ("nominal", "fair", "serious", "critical")  # NSProcessInfoThermalState


class MetalSensors:
    """Sensors of one device; `ports` are those that this process has opened."""

    def __init__(self, device: Any, ports: Sequence[MetalPort]) -> None:
        self._device = device
        self._ports = ports

    def uuid(self) -> str:
        """Return "GPU-" and the number of the device in the system's registry, which changes with a restart."""
        with autorelease_pool():
            return f"GPU-{int(self._device.registryID()):016x}"

    def memory(self) -> tuple[int, int]:
        """Return the bytes that this process uses, and those that the system recommends at most."""
        with autorelease_pool():
            return int(self._device.currentAllocatedSize()), int(self._device.recommendedMaxWorkingSetSize())

    def busy(self) -> tuple[int, int]:
        """Return the percentage of the last second in which work of this process ran, twice."""
        shares = [port.busy_times.share() for port in self._ports if not port.forked()]
        percent = round(100 * max(shares, default=0.0))
        return percent, percent

    def thermal_state(self) -> str:
        """Return "nominal", "fair", "serious" or "critical": the system slows down in the latter two."""
        return thermal_state()

    def temperature(self) -> int:
        self._unpublished("temperature")

    def power(self) -> int:
        self._unpublished("power draw")

    def clock(self) -> int:
        self._unpublished("clock rate")

    def processes(self) -> Mapping[int, int | None]:
        """Return this process, if it has opened the device; others are unknown."""
        used: dict[int, int | None] = {}
        for port in self._ports:
            try:
                used[os.getpid()] = port.process_memory()[os.getpid()]
            except ForebayError:  # closed, or of the parent process
                continue
        return used

    def _unpublished(self, what: str) -> NoReturn:
        state = thermal_state()
        message = f"macOS does not publish the {what} of the GPU; the thermal state is {state}"
        raise Unsupported(message, ability="Telemetry")


def thermal_state() -> str:
    """Return the system's thermal state; "" for a state that this version does not know."""
    with autorelease_pool():
        state = int(foundation().NSProcessInfo.processInfo().thermalState())
    return _THERMAL_STATES[state] if state in range(len(_THERMAL_STATES)) else ""
