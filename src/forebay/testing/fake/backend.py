"""A backend with no memory and no threads, whose clock the test cranks: the smallest one that keeps the contract.

Queued work is done only when the test says so. `port.clock.advance(ns)` does all that ends within that time;
`queue.finish()`, `queue.finish(tick)`, `port.finish_all()` and every wait do what they need and nothing else. Work that
waits for another queue lets that queue's work be done first. Since only what was signalled can be waited for, this
always ends. Every call is written to `port.calls`, and any call and any work can be made to fail. Work that touches
memory of the port which is not reserved any more fails by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forebay.address_allocator import Addresses
from forebay.backends.common.arguments import integer_of, size_of
from forebay.backends.common.page_ledger import Space, Spaces, space_of
from forebay.byte_sizes import format_bytes
from forebay.errors import DeviceError, Forked, OutOfMemory, WrongState
from forebay.spi import DeviceProps
from forebay.testing.fake.clock import FakeClock, FakeMark
from forebay.testing.fake.faults import Fault, Faults
from forebay.testing.fake.queue import FakeQueue

__all__ = ["FakeClock", "FakeDriver", "FakeMark", "FakePort", "FakeQueue"]

# Where no program has memory, and still below 2^53, which is as far as a JSON reader can count.
_BASE, _ROOM = 1 << 48, 1 << 43


class FakeDriver:
    """`count` fake devices on one clock; `ports` are those that were opened, in order."""

    def __init__(self, count: int = 1, total: int = 1 << 30, *, kind: str = "fake") -> None:
        self.kind = kind
        self.clock = FakeClock()
        self.ports: list[FakePort] = []
        self._count = count
        self._total = total

    def count(self) -> int:
        return self._count

    def why_not(self) -> str:
        return "" if self._count else "this fake driver was made without devices"

    def open(self, index: int) -> FakePort:
        if integer_of(index, "index") not in range(self._count):
            raise DeviceError(f"there is no {self.kind}:{index}", code=1, call="open", device=f"{self.kind}:{index}")
        self.ports.append(FakePort(self._total, index, kind=self.kind, clock=self.clock))
        return self.ports[-1]


class FakePort:
    """A device that is not there. `calls` are tuples: the method, the handle if it was a queue's, the arguments."""

    imaginary = True  # its addresses have no memory behind them

    def __init__(
        self, total: int = 1 << 30, index: int = 0, *, kind: str = "fake", clock: FakeClock | None = None
    ) -> None:
        self.props = DeviceProps(kind, index, "fake device", size_of(total, "total"))
        self.name = f"{kind}:{index}"
        self.clock = clock or FakeClock()
        self.command_ns = 1000  # how long a copy, a fill or a call takes
        self.calls: list[tuple[object, ...]] = []
        self._faults = Faults()
        self._work_faults = Faults()
        self._capacity = total
        self._reserved = 0
        self._memory, self._host_memory, self._room = (
            Addresses(_BASE + (3 * index + i) * _ROOM, _ROOM) for i in range(3)
        )
        self._spaces = Spaces(self.name)
        self._queues: dict[int, FakeQueue] = {}
        self._handles = 0
        self._closed = False
        self._forked = False

    def reserve(self, nbytes: int) -> int:
        nbytes = size_of(nbytes)
        with self.enter("reserve", nbytes):
            if nbytes > self._capacity - self.reserved:
                raise self._full(nbytes, "reserve")
            address = self._memory.take(nbytes)
            self._reserved += nbytes
            return address

    def release(self, address: int) -> None:
        address = integer_of(address, "address")
        with self.enter("release", address):
            self._reserved -= self._given_back(self._memory, address, "release")

    @property
    def reserved(self) -> int:
        return self._reserved + self._spaces.held

    def memory_info(self) -> tuple[int, int]:
        with self.enter("memory_info"):
            return self._capacity - self.reserved, self._capacity

    def queue(self, priority: int = 0) -> FakeQueue:
        with self.enter("queue", integer_of(priority, "priority")):
            queue = self._queues[self._handles] = FakeQueue(self, self._handles, priority)
            self._handles += 1
            return queue

    def close(self) -> None:
        if self._closed or self._forked:
            return
        with self.enter("close"):
            for queue in list(self._queues.values()):
                queue.close()
            self._memory.clear()
            self._host_memory.clear()
            self._room.clear()
            self._spaces.clear()
            self._closed = True

    # Abilities

    def pin(self, nbytes: int) -> int:
        nbytes = size_of(nbytes)
        with self.enter("pin", nbytes):
            return self._host_memory.take(nbytes)

    def unpin(self, address: int) -> None:
        address = integer_of(address, "address")
        with self.enter("unpin", address):
            self._given_back(self._host_memory, address, "unpin")

    def reserve_space(self, nbytes: int, page: int) -> int:
        nbytes, page = space_of(nbytes, page)
        with self.enter("reserve_space", nbytes, page):
            try:
                address = self._room.take(nbytes)
            except MemoryError:
                raise self._full(nbytes, "reserve_space") from None
            self._spaces.add(Space(address, nbytes, page))
            return address

    def release_space(self, address: int) -> None:
        address = integer_of(address, "address")
        with self.enter("release_space", address):
            self._room.give(self._spaces.take_out(address).address)

    def commit(self, address: int, nbytes: int) -> None:
        with self.enter("commit", address, nbytes):
            space, address, nbytes = self._spaces.part("commit", address, nbytes)
            if nbytes - space.held_in(address, nbytes) > self._capacity - self.reserved:
                raise self._full(nbytes, "commit")
            self._spaces.write(space, address, nbytes, held=True)

    def decommit(self, address: int, nbytes: int) -> None:
        with self.enter("decommit", address, nbytes):
            space, address, nbytes = self._spaces.part("decommit", address, nbytes)
            self._spaces.write(space, address, nbytes, held=False)

    def set_capacity(self, nbytes: int) -> None:
        nbytes = size_of(nbytes)
        with self.enter("set_capacity", nbytes):
            if nbytes < self.reserved:
                raise WrongState(f"{self.name}: {format_bytes(self.reserved)} are reserved: release memory first")
            self._capacity = nbytes

    def abandon(self) -> None:
        self._forked = True
        for queue in self._queues.values():
            queue.abandon()

    # The crank

    def finish_all(self) -> None:
        """Does all that is queued on this port."""
        for queue in list(self._queues.values()):
            queue.finish()

    def fail(self, call: str, *, after: int = 0, error: Exception | None = None) -> Fault:
        """Makes one call of that name fail, once `after` more have succeeded."""
        return self._faults.add(Fault(call, after, error or self._scripted(call)))

    def fail_call(self, n: int, *, error: Exception | None = None) -> Fault:
        """Makes the n-th call from now fail, whichever it is; 1 is the next."""
        return self._faults.add(Fault("", n - 1, error or self._scripted("call")))

    def fail_work(self, call: str, *, after: int = 0, error: Exception | None = None) -> Fault:
        """Makes work fail when it is done, not when it is queued: the queue's next wait tells it."""
        return self._work_faults.add(Fault(call, after, error or self._scripted(call)))

    # For its queues

    @contextmanager
    def enter(self, call: str, *arguments: object, closed: bool = False) -> Iterator[None]:
        """Every call goes through here: is it allowed, write it down, should it fail."""
        with self.clock.lock:
            if self._forked:
                raise Forked(f"{self.name} was opened before this process was forked")
            if self._closed and not closed:
                raise WrongState(f"{self.name} was closed")
            if call:
                self.calls.append((call, *arguments))
                if error := self._faults.due(call):
                    raise error
            yield

    def check_work(self, call: str, touches: tuple[tuple[int, int], ...]) -> None:
        """What goes wrong when work is done: what the test wanted, or memory that is gone."""
        if error := self._work_faults.due(call):
            raise error
        for address, nbytes in touches:
            if any(memory.lost(address, nbytes) for memory in (self._memory, self._host_memory, self._room)) or (
                (space := self._spaces.at(address, nbytes)) and space.lacks(address, nbytes)
            ):
                message = f"{self.name}: {call} of {nbytes} bytes at {address:#x}, which are not reserved"
                raise DeviceError(message, code=2, call=call, device=self.name)

    def forget(self, handle: int) -> None:
        self._queues.pop(handle, None)

    def _full(self, nbytes: int, call: str) -> OutOfMemory:
        free = self._capacity - self.reserved
        return OutOfMemory(
            f"{self.name}: wanted {format_bytes(nbytes)}, {format_bytes(free)} free of {format_bytes(self._capacity)}",
            wanted=nbytes,
            free=free,
            reserved=self.reserved,
            capacity=self._capacity,
            call=call,
            device=self.name,
        )

    def _given_back(self, addresses: Addresses, address: int, call: str) -> int:
        nbytes = addresses.give(address)
        if nbytes is None:
            message = f"{self.name}: nothing that can be given back is at {address:#x}"
            raise DeviceError(message, code=1, call=call, device=self.name)
        return nbytes

    def _scripted(self, call: str) -> DeviceError:
        return DeviceError(f"{self.name}: scripted failure of {call}", code=1, call=call, device=self.name)
