"""What is around simulated memory: streams whose work is done when the world says so."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from forebay.address_allocator import Addresses
from forebay.backends.common.arguments import index_of

if TYPE_CHECKING:
    from forebay.spi import Queue

__all__ = ["SimulatedQueue", "Streams", "World"]

_SPACE, _ROOM = 0x200000000000, 1 << 57  # address space of growing segments


class World:
    """What several simulated devices and pinned memory have in common: numbers of events, and what goes wrong next."""

    def __init__(self) -> None:
        self.now = 1
        self.failures = 0
        self.pools = count(1)
        self.graphs = count(1)
        self.spaces = Addresses(_SPACE, _ROOM)
        self._level = 0
        self._held_from = 0
        self._queues: list[SimulatedQueue] = []
        self._all_done = 0

    def join(self, queue: SimulatedQueue) -> None:
        queue.done = self._all_done
        self._queues.append(queue)

    def hold(self, level: int) -> None:
        self._level, self._held_from = level, self.now
        if level == 2:
            self._all_done = 0
            for queue in self._queues:
                queue.done = 0

    def finish_all(self) -> None:
        self._all_done = self.now
        for queue in self._queues:
            queue.done = self.now

    def reached(self, done: int) -> int:
        if self._level == 0:
            return self.now
        return max(done, self._held_from) if self._level == 1 else done


class SimulatedQueue:
    """One stream. Its ticks are numbers of the world's events."""

    def __init__(self, world: World, handle: int) -> None:
        self.handle = handle
        self.done = 0
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
        """Nothing has an order here."""

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """There are no bytes."""

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        """There are no bytes."""

    def close(self, timeout: float | None = None) -> bool:  # noqa: ARG002 -- everything is done at once
        return True


class Streams:
    """The streams that use something simulated. What they have queued is done at once, unless it is held."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._queues: dict[int, SimulatedQueue] = {}

    def hold_events(self, level: int = 1) -> None:
        """Nothing queued from now on is done until it is released; with level 2, nothing queued before either."""
        if level not in (1, 2):
            raise ValueError(f"level is 1 or 2, not {level!r}")
        self._world.hold(level)

    def release_events(self, stream: int | None = None) -> None:
        """What one stream has queued is done; without a stream the hold ends."""
        if stream is None:
            self._world.hold(0)
        else:
            self._queue(stream).finish()
        self._time_goes_on()

    def synchronize(self, stream: int | None = None) -> None:
        """What a stream has queued is done; without a stream, what all have."""
        if stream is None:
            self._world.finish_all()
        else:
            self._queue(stream).finish()
        self._time_goes_on()

    def _time_goes_on(self) -> None:
        """More of what was queued may be done now."""

    def _queue(self, stream: int) -> SimulatedQueue:
        stream = index_of(stream, "stream")
        if stream not in self._queues:
            self._queues[stream] = SimulatedQueue(self._world, stream)
        return self._queues[stream]
