"""A device without memory for heap allocator tests: the test decides when it refuses and when its queues are done."""

from __future__ import annotations

from itertools import count

from forebay.errors import OutOfMemory
from forebay.spi import DeviceProps, Queue

__all__ = ["ScriptedPort", "ScriptedQueue"]

_MIDDLE, _STEP = 1 << 56, 1 << 36  # a step is larger than any heap


class ScriptedQueue:
    """A queue that is busy or idle. When it becomes idle, all its ticks are reached."""

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
        """Do nothing: no test lets one queue wait for another."""

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """Do nothing: there are no bytes."""

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        """Do nothing: there are no bytes."""

    def close(self, timeout: float | None = None) -> bool:
        self.finish()
        return True


class ScriptedPort:
    """A port that reserves alternately above and below all other memory, so that address order is not age order.

    It refuses the next `refusals` requests, and those that exceed `capacity` less the bytes used by `others`.
    Reservations are numbered from `first` on, and each number has its own address.
    """

    def __init__(self, props: DeviceProps, capacity: int, first: int = 0) -> None:
        self.props = props
        self.capacity = capacity
        self.others = 0
        self.refusals = 0
        self.held: dict[int, tuple[int, int]] = {}  # by address: number and size
        self._numbers = count(first)

    def reserve(self, nbytes: int) -> int:
        free, total = self.memory_info()
        if self.refusals or nbytes > free:
            self.refusals = max(self.refusals - 1, 0)
            raise OutOfMemory("refused by the test", wanted=nbytes, free=free, capacity=total)
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
        """Do nothing."""
