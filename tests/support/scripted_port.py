"""A device without memory for the allocator of heaps: it refuses when told to, and its queues work until told."""

from __future__ import annotations

from itertools import count

from forebay.errors import OutOfMemory
from forebay.spi import DeviceProps, Queue

__all__ = ["ScriptedPort", "ScriptedQueue"]

_MIDDLE, _STEP = 1 << 56, 1 << 36  # a step is more than any heap has


class ScriptedQueue:
    """It has something to do or it has not: with its work all its ticks are reached."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.busy = False
        self._signalled = self._reached = 0

    def work(self) -> None:
        self.busy = True

    def finish(self) -> None:
        self.busy, self._reached = False, self._signalled

    def signal(self) -> int:
        self._signalled += 1
        if not self.busy:
            self.finish()
        return self._signalled

    def reached(self) -> int:
        return self._reached

    def idle(self) -> bool:
        return not self.busy

    def wait(self, tick: int) -> None:
        assert tick <= self._signalled
        if tick > self._reached:
            self.finish()

    def wait_for(self, other: Queue, tick: int) -> None:
        """The tests give no queue to another."""

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """There are no bytes."""

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        """There are no bytes."""

    def close(self, timeout: float | None = None) -> bool:
        self.finish()
        return True


class ScriptedPort:
    """New memory comes now above and now below all other, so that what came first is not what lies lowest.

    The next `refusals` requests it refuses, and those for more than `capacity`, of which `others` have some. What it
    gives is numbered from `first` on, and no two numbers have the same place.
    """

    def __init__(self, props: DeviceProps, capacity: int, first: int = 0) -> None:
        self.props = props
        self.capacity = capacity
        self.others = 0
        self.refusals = 0
        self.held: dict[int, tuple[int, int]] = {}  # of each address: the how manieth it was, its size
        self._numbers = count(first)

    def reserve(self, nbytes: int) -> int:
        free, total = self.memory_info()
        if self.refusals or nbytes > free:
            self.refusals = max(self.refusals - 1, 0)
            raise OutOfMemory("as the test wants it", wanted=nbytes, free=free, capacity=total)
        number = next(self._numbers)
        address = _MIDDLE + (number + 1 if number % 2 else -number) * _STEP
        self.held[address] = number, nbytes
        return address

    def release(self, address: int) -> None:
        del self.held[address]

    def memory_info(self) -> tuple[int, int]:
        return self.capacity - self.others - sum(nbytes for _, nbytes in self.held.values()), self.capacity

    def queue(self, priority: int = 0) -> ScriptedQueue:
        return ScriptedQueue(0)

    def close(self) -> None:
        """Nothing is open."""
