"""Simulated clock and streams."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from forebay._base.address_allocator import AddressAllocator
from forebay.backends.common.arguments import index_of

if TYPE_CHECKING:
    from forebay.spi import Queue

__all__ = ["SimulatedQueue", "Streams", "World"]

_EXPANDABLE_BASE, _EXPANDABLE_SIZE = 0x200000000000, 1 << 57  # address space of expandable segments


class World:
    """Clock of a simulation, shared by the devices and the pinned memory that are created with it.

    The clock counts the ticks of all streams. Devices that share it also share the numbers of pools and graphs, the
    address space of expandable segments, and the failures requested by `Device.fail_next`.
    """

    def __init__(self) -> None:
        self.now = 1  # the last tick
        self.failures = 0  # requests to devices that will fail
        self.pools: count[int] = count(1)
        self.graphs: count[int] = count(1)
        self.expandable_addresses: AddressAllocator = AddressAllocator(_EXPANDABLE_BASE, _EXPANDABLE_SIZE)
        self._hold_level = 0
        self._held_from = 0
        self._queues: list[SimulatedQueue] = []
        self._all_done = 0

    def join(self, queue: SimulatedQueue) -> None:
        """Add a queue.

        Parameters
        ----------
        queue : SimulatedQueue
            The queue.
        """
        queue.done = self._all_done
        self._queues.append(queue)

    def hold(self, level: int) -> None:
        """Hold work from now on, or end the hold.

        Parameters
        ----------
        level : {0, 1, 2}
            0 ends the hold, 1 holds work queued from now on, 2 also work queued before.
        """
        self._hold_level, self._held_from = level, self.now
        if level == 2:
            self._all_done = 0
            for queue in self._queues:
                queue.done = 0

    def finish_all(self) -> None:
        """Complete the work of all queues."""
        self._all_done = self.now
        for queue in self._queues:
            queue.done = self.now

    def reached(self, done: int) -> int:
        """Return the tick that a queue has reached.

        Parameters
        ----------
        done : int
            The tick up to which the queue's work was completed explicitly.
        """
        if self._hold_level == 0:
            return self.now
        return max(done, self._held_from) if self._hold_level == 1 else done


class SimulatedQueue:
    """One stream, with ticks of the world's clock."""

    def __init__(self, world: World, handle: int) -> None:
        self.handle = handle
        self.done: int = 0
        self._world = world
        self._last = 0
        world.join(self)

    def signal(self) -> int:
        self._world.now += 1
        self._last = self._world.now
        return self._last

    def reached(self) -> int:
        return self._world.reached(self.done)

    def idle(self) -> bool:
        return self.reached() >= self._last

    def wait(self, tick: int) -> None:
        self.done = max(self.done, tick)

    def finish(self) -> None:
        self.done = self._world.now

    def wait_for(self, other: Queue, tick: int) -> None:
        """Do nothing: simulated streams have no order."""

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """Do nothing: simulated memory has no content."""

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        """Do nothing: simulated memory has no content."""

    def close(self, timeout: float | None = None) -> bool:  # noqa: ARG002 -- there is no work to wait for
        return True


class Streams:
    """Streams of a simulated device or pinned memory. Queued work completes immediately unless it is held."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._queues: dict[int, SimulatedQueue] = {}

    def hold_events(self, level: int = 1) -> None:
        """Delay work until `release_events` or `synchronize`.

        Parameters
        ----------
        level : {1, 2}, default 1
            1 delays work queued from now on; 2 also work queued before.

        Raises
        ------
        ValueError
            If `level` is invalid.
        """
        if level not in (1, 2):
            raise ValueError(f"level must be 1 or 2, not {level!r}")
        self._world.hold(level)

    def release_events(self, stream: int | None = None) -> None:
        """Complete delayed work.

        Parameters
        ----------
        stream : int, optional
            The stream whose queued work completes; by default the delay ends for all streams.
        """
        if stream is None:
            self._world.hold(0)
        else:
            self._queue(stream).finish()
        self._on_progress()

    def synchronize(self, stream: int | None = None) -> None:
        """Complete the queued work.

        Parameters
        ----------
        stream : int, optional
            The stream; all streams by default.
        """
        if stream is None:
            self._world.finish_all()
        else:
            self._queue(stream).finish()
        self._on_progress()

    def _on_progress(self) -> None:
        """Handle the completion of queued work."""

    def _queue(self, stream: int) -> SimulatedQueue:
        stream = index_of(stream, "stream")
        if stream not in self._queues:
            self._queues[stream] = SimulatedQueue(self._world, stream)
        return self._queues[stream]
