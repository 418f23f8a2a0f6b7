"""The required part of the contract: driver, port and queue."""

from __future__ import annotations

from typing import Protocol

from forebay.spi.properties import DeviceProps

__all__ = ["SEGMENT_ALIGNMENT", "Driver", "Port", "Queue"]

SEGMENT_ALIGNMENT = 2 << 20  # bytes: see `Port.reserve`


class Queue(Protocol):
    """An in-order queue of a device.

    The methods queue work and return; they do not wait for the work. If queued work fails, the queue continues and the
    next `wait` raises the failure, once.
    """

    @property
    def handle(self) -> int:
        """Number that identifies the queue within its port; the first queue of a port has 0."""

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """Copy bytes between any two of host and device memory.

        Parameters
        ----------
        dst : int
            Destination address.
        src : int
            Source address.
        nbytes : int
            Number of bytes.
        """

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        """Set every byte of a range to the same value.

        Parameters
        ----------
        dst : int
            Address of the range.
        byte : int
            Value from 0 to 255.
        nbytes : int
            Length of the range in bytes.
        """

    def signal(self) -> int:
        """Queue the next tick, from 1, which is reached when all work queued before it has completed."""

    def reached(self) -> int:
        """Return the last tick that the queue has reached, without blocking; 0 before the first."""

    def idle(self) -> bool:
        """Return True if all queued work has completed, without blocking."""

    def wait(self, tick: int) -> None:
        """Block the calling thread until the queue has reached a tick.

        Parameters
        ----------
        tick : int
            A tick that `signal` returned; 0 is always reached.

        Raises
        ------
        DeviceError
            If queued work has failed since the last wait.
        WrongState
            If the tick was not signalled or will never be reached.
        """

    def wait_for(self, other: Queue, tick: int) -> None:
        """Make all work that is queued later wait until another queue has reached a tick. Does not block the host.

        Parameters
        ----------
        other : Queue
            A queue of the same kind.
        tick : int
            A tick that `other.signal` returned.
        """

    def close(self, timeout: float | None = None) -> bool:
        """Complete the queued work and close the queue. Return False if the timeout expired and work was dropped.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which the remaining work is dropped. By default, wait without limit.
        """


class Port(Protocol):
    """An open device."""

    @property
    def props(self) -> DeviceProps:
        """Properties of the device."""

    def reserve(self, nbytes: int) -> int:
        """Allocate a segment of device memory.

        Parameters
        ----------
        nbytes : int
            Size in bytes.

        Returns
        -------
        int
            Address, aligned to `SEGMENT_ALIGNMENT`, 2 MiB, or to `Heaps.alignment` if the device has heaps.

        Raises
        ------
        OutOfMemory
            If the device is full.
        """

    def release(self, address: int) -> None:
        """Free a segment.

        Parameters
        ----------
        address : int
            Address that `reserve` returned.
        """

    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total bytes of the device."""

    def queue(self, priority: int = 0) -> Queue:
        """Create a queue.

        Parameters
        ----------
        priority : int, default 0
            Scheduling hint; lower numbers are more urgent.
        """

    def close(self) -> None:
        """Close the port's queues and free its memory. Closing again has no effect."""


class Driver(Protocol):
    """All devices of a kind. Constructing a driver does not open a device or start a thread."""

    @property
    def kind(self) -> str:
        """Device kind, which is the name of the entry point."""

    def count(self) -> int:
        """Return the number of devices; 0 also if they cannot be counted. Never raises."""

    def why_not(self) -> str:
        """Return the reason why there are no devices, as one sentence for the user; "" if there are."""

    def open(self, index: int) -> Port:
        """Open a device.

        Parameters
        ----------
        index : int
            Index from 0 to `count() - 1`.

        Raises
        ------
        DeviceError
            If the device does not exist or cannot be opened.
        """
