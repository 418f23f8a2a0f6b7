"""Optional abilities of drivers: description, peers, sensors, emulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from forebay.profiles import Profile
from forebay.spi.properties import DeviceProps

__all__ = ["Describes", "Emulates", "Peers", "Sensors", "Telemetry"]


@runtime_checkable
class Describes(Protocol):
    """A Driver that reports the properties of devices without opening them."""

    def describe(self, index: int) -> DeviceProps:
        """Return the properties of a device.

        Parameters
        ----------
        index : int
            Index of the device.

        Raises
        ------
        DeviceError
            If the device does not exist.
        """


@runtime_checkable
class Peers(Protocol):
    """A Driver that reports which devices can access each other's memory.

    Queues copy between all devices of the kind. A backend enables the access itself, when it is first needed.
    """

    def can_access(self, index: int, peer: int) -> bool:
        """Return True if a device can access the memory of another one. Does not open them.

        Parameters
        ----------
        index : int
            Index of the accessing device.
        peer : int
            Index of the device that owns the memory.
        """


class Sensors(Protocol):
    """Sensor readings of one device. Each call reads current values and does not open a device or start a thread."""

    def uuid(self) -> str:
        """Return the device's UUID.

        Returns
        -------
        str
            For GPUs "GPU-" and the UUID.
        """

    def memory(self) -> tuple[int, int]:
        """Return the used and the total bytes of all processes."""

    def busy(self) -> tuple[int, int]:
        """Return the utilization over the last second.

        Returns
        -------
        tuple of int
            Percent of the time in which the device computed, and in which it accessed its memory.
        """

    def temperature(self) -> int:
        """Return the temperature in degrees Celsius."""

    def power(self) -> int:
        """Return the power draw in milliwatts."""

    def clock(self) -> int:
        """Return the clock rate of the multiprocessors in megahertz."""

    def processes(self) -> Mapping[int, int | None]:
        """Return the processes that use the device.

        Returns
        -------
        mapping of int to int or None
            Process id to bytes of device memory, None if unknown.
        """


@runtime_checkable
class Telemetry(Protocol):
    """A Driver, or a library, that reads sensors without opening devices.

    Devices have the machine's own indices, which include devices that the environment hides from the process.
    """

    def machine_count(self) -> int:
        """Return the number of devices in the machine, hidden ones included."""

    def sensors(self, index: int) -> Sensors:
        """Return the sensors of a device.

        Parameters
        ----------
        index : int
            Index of the device in the machine.

        Raises
        ------
        DeviceError
            If the device does not exist.
        """


@runtime_checkable
class Emulates(Protocol):
    """A Driver whose devices are emulated on this machine."""

    @property
    def profile(self) -> Profile:
        """Profile of the emulated hardware."""

    @property
    def guard(self) -> bool:
        """True if host access to device memory outside queued work ends the process."""
