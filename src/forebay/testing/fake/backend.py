"""The fake driver and port: a backend without memory and threads, whose virtual clock the test advances.

Queued work runs only on request. `port.clock.advance(ns)` runs all work that ends within that time; `queue.finish()`,
`queue.finish(tick)`, `port.finish_all()` and every wait run exactly the work that they need, including work of other
queues that it waits for. Only signalled ticks can be waited for, so this always terminates. `port.calls` logs every
call, and each call and each piece of work can be made to fail. Work that accesses memory that is no longer reserved
fails with a DeviceError.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from forebay._base.address_allocator import AddressAllocator
from forebay._base.byte_sizes import format_bytes
from forebay.backends.common.arguments import integer_of, size_of
from forebay.backends.common.page_ledger import AddressSpace, PageLedger, check_space_arguments
from forebay.errors import DeviceError, OutOfMemory, WrongState
from forebay.spi import DeviceProps
from forebay.testing.fake.clock import FakeClock, FakeMark
from forebay.testing.fake.faults import Fault, Faults
from forebay.testing.fake.queue import FakeQueue

__all__ = ["FakeClock", "FakeDriver", "FakeMark", "FakePort", "FakeQueue"]

# Above all user-space addresses, and below 2^53, the largest integer that JSON readers represent exactly.
_BASE, _RANGE_BYTES = 1 << 48, 1 << 43


class FakeDriver:
    """Driver of fake devices that share one clock.

    Parameters
    ----------
    count : int, default 1
        Number of devices.
    total : int, default 1073741824
        Memory of each device in bytes.
    kind : str, default "fake"
        Device kind.

    Examples
    --------
    >>> driver = FakeDriver(count=2)
    >>> driver.open(1).props.index
    1
    >>> driver.ports[0].calls
    []
    """

    def __init__(self, count: int = 1, total: int = 1 << 30, *, kind: str = "fake") -> None:
        self.kind = kind
        self.clock: FakeClock = FakeClock()
        self.ports: list[FakePort] = []  # all opened ports, in order
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
    """An open fake device, with all abilities of a port that need no hardware.

    `calls` logs the calls as tuples: the method name, the handle if it is a method of a queue, and the arguments.
    `command_ns` is the virtual duration of a copy, a fill or a call.

    Parameters
    ----------
    total : int, default 1073741824
        Memory in bytes.
    index : int, default 0
        Device index.
    kind : str, default "fake"
        Device kind.
    clock : FakeClock, optional
        The virtual clock; a new one by default.

    Examples
    --------
    >>> port = FakePort()
    >>> queue, address = port.queue(), port.reserve(1 << 20)
    >>> queue.fill(address, 0, 8)
    >>> queue.signal(), queue.reached()
    (1, 0)
    >>> port.clock.advance(port.command_ns)
    >>> queue.reached()
    1
    """

    unbacked = True  # no memory behind the addresses, see forebay.testing.conformance

    def __init__(
        self, total: int = 1 << 30, index: int = 0, *, kind: str = "fake", clock: FakeClock | None = None
    ) -> None:
        self.props: DeviceProps = DeviceProps(kind, index, "fake device", size_of(total, "total"))
        self.name: str = f"{kind}:{index}"
        self.clock: FakeClock = clock or FakeClock()
        self.command_ns = 1000
        self.calls: list[tuple[object, ...]] = []
        self._faults = Faults()
        self._work_faults = Faults()
        self._capacity = total
        self._reserved = 0
        self._memory, self._host_memory, self._space_addresses = (
            AddressAllocator(_BASE + (3 * index + i) * _RANGE_BYTES, _RANGE_BYTES) for i in range(3)
        )
        self._spaces = PageLedger(self.name)
        self._queues: dict[int, FakeQueue] = {}
        self._handles = 0
        self._closed = False

    def reserve(self, nbytes: int) -> int:
        nbytes = size_of(nbytes)
        with self.enter("reserve", nbytes):
            if nbytes > self._capacity - self.reserved:
                raise self._full(nbytes, "reserve")
            address = self._memory.allocate(nbytes)
            self._reserved += nbytes
            return address

    def release(self, address: int) -> None:
        address = integer_of(address, "address")
        with self.enter("release", address):
            self._reserved -= self._free(self._memory, address, "release")

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
        if self._closed:
            return
        with self.enter("close"):
            for queue in list(self._queues.values()):
                queue.close()
            self._memory.clear()
            self._host_memory.clear()
            self._space_addresses.clear()
            self._spaces.clear()
            self._closed = True

    # Abilities

    def pin(self, nbytes: int) -> int:
        nbytes = size_of(nbytes)
        with self.enter("pin", nbytes):
            return self._host_memory.allocate(nbytes)

    def unpin(self, address: int) -> None:
        address = integer_of(address, "address")
        with self.enter("unpin", address):
            self._free(self._host_memory, address, "unpin")

    def reserve_space(self, nbytes: int, page: int) -> int:
        nbytes, page = check_space_arguments(nbytes, page)
        with self.enter("reserve_space", nbytes, page):
            try:
                address = self._space_addresses.allocate(nbytes)
            except MemoryError:
                raise self._full(nbytes, "reserve_space") from None
            self._spaces.add(AddressSpace(address, nbytes, page))
            return address

    def release_space(self, address: int) -> None:
        address = integer_of(address, "address")
        with self.enter("release_space", address):
            space = self._spaces.find_empty(address)
            self._spaces.remove(space)
            self._space_addresses.free(space.address)

    def commit(self, address: int, nbytes: int) -> None:
        with self.enter("commit", address, nbytes):
            space, address, nbytes = self._spaces.find_range("commit", address, nbytes)
            if nbytes - space.committed_in(address, nbytes) > self._capacity - self.reserved:
                raise self._full(nbytes, "commit")
            self._spaces.write(space, address, nbytes, held=True)

    def decommit(self, address: int, nbytes: int) -> None:
        with self.enter("decommit", address, nbytes):
            space, address, nbytes = self._spaces.find_range("decommit", address, nbytes)
            self._spaces.write(space, address, nbytes, held=False)

    def set_capacity(self, nbytes: int) -> None:
        nbytes = size_of(nbytes)
        with self.enter("set_capacity", nbytes):
            if nbytes < self.reserved:
                raise WrongState(f"{self.name}: {format_bytes(self.reserved)} are reserved: release memory first")
            self._capacity = nbytes

    def before_fork(self, seconds: float) -> None:
        """Do nothing: work runs only on request."""

    def after_fork_in_child(self) -> None:
        self.clock.lock = threading.RLock()
        for queue in self._queues.values():
            queue.timeline.after_fork_in_child(f"{self.name}: queue {queue.handle}")

    # Test control

    def finish_all(self) -> None:
        """Run all queued work of the port."""
        for queue in list(self._queues.values()):
            queue.finish()

    def fail(self, call: str, *, after: int = 0, error: Exception | None = None) -> Fault:
        """Make a later call of one method fail. The result's `hit` turns True when the failure is raised.

        Parameters
        ----------
        call : str
            Name of the method.
        after : int, default 0
            Number of calls of the method that still succeed.
        error : Exception, optional
            The error to raise; a DeviceError with code 1 by default.

        Raises
        ------
        ValueError
            If `after` is negative.

        Examples
        --------
        >>> port = FakePort()
        >>> fault = port.fail("reserve", after=1)
        >>> _ = port.reserve(512)
        >>> port.reserve(512)
        Traceback (most recent call last):
        forebay.DeviceError: fake:0: scripted failure of reserve
        >>> fault.hit
        True
        """
        return self._faults.add(Fault(call, after, error or self._scripted(call)))

    def fail_call(self, n: int, *, error: Exception | None = None) -> Fault:
        """Make the n-th call from now fail, whatever its method.

        Parameters
        ----------
        n : int
            Number of the call; 1 is the next.
        error : Exception, optional
            The error to raise; a DeviceError with code 1 by default.

        Raises
        ------
        ValueError
            If `n` is less than 1.
        """
        return self._faults.add(Fault("", n - 1, error or self._scripted("call")))

    def fail_work(self, call: str, *, after: int = 0, error: Exception | None = None) -> Fault:
        """Make queued work fail when it runs. The next wait of its queue raises the error.

        Parameters
        ----------
        call : str
            Name of the method that queues the work: "copy", "fill", "call" or "call_native".
        after : int, default 0
            Number of pieces of such work that still succeed.
        error : Exception, optional
            The error; a DeviceError with code 1 by default.

        Raises
        ------
        ValueError
            If `after` is negative.
        """
        return self._work_faults.add(Fault(call, after, error or self._scripted(call)))

    # Called by the port's queues

    @contextmanager
    def enter(self, call: str, *arguments: object, closed: bool = False) -> Iterator[None]:
        """Check that a call is allowed, log it, raise its scripted error, and hold the clock's lock until the end."""
        with self.clock.lock:
            if self._closed and not closed:
                raise WrongState(f"{self.name} was closed")
            if call:
                self.calls.append((call, *arguments))
                if error := self._faults.due(call):
                    raise error
            yield

    def check_work(self, call: str, touches: tuple[tuple[int, int], ...]) -> None:
        """Raise the scripted error of work that runs now, or a DeviceError if it accesses unreserved memory."""
        if error := self._work_faults.due(call):
            raise error
        for address, nbytes in touches:
            if any(
                memory.outside_allocation(address, nbytes)
                for memory in (self._memory, self._host_memory, self._space_addresses)
            ) or ((space := self._spaces.at(address, nbytes)) and space.has_uncommitted(address, nbytes)):
                message = f"{self.name}: {call} of {nbytes} bytes at {address:#x}, which are not reserved"
                raise DeviceError(message, code=2, call=call, device=self.name)

    def remove_queue(self, handle: int) -> None:
        self._queues.pop(handle, None)

    def _full(self, nbytes: int, call: str) -> OutOfMemory:
        free = self._capacity - self.reserved
        return OutOfMemory(
            f"{self.name}: {format_bytes(nbytes)} requested, {format_bytes(free)} free",
            wanted=nbytes,
            free=free,
            reserved=self.reserved,
            capacity=self._capacity,
            call=call,
            device=self.name,
        )

    def _free(self, addresses: AddressAllocator, address: int, call: str) -> int:
        nbytes = addresses.free(address)
        if nbytes is None:
            message = f"{self.name}: no allocation at {address:#x}"
            raise DeviceError(message, code=1, call=call, device=self.name)
        return nbytes

    def _scripted(self, call: str) -> DeviceError:
        return DeviceError(f"{self.name}: scripted failure of {call}", code=1, call=call, device=self.name)
