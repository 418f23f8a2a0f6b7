"""A device that is this machine: its own memory under a capacity, and native threads as queues."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from forebay.backends.common.arguments import address_of, integer_of, size_of
from forebay.backends.common.mmap import lock_memory, map_memory, unlock_memory, unmap_memory
from forebay.backends.common.shared_slots import SharedEvent
from forebay.backends.host.address_space import HostSpaces
from forebay.backends.host.ipc import MachineSharing
from forebay.backends.host.queue import HostQueue
from forebay.byte_sizes import format_bytes
from forebay.errors import DeviceError, Forked, OutOfMemory, WrongState
from forebay.spi import DeviceProps

__all__ = ["MachinePort"]


class MachinePort:
    """A device made of this machine: its memory up to a capacity, native threads as queues. `props` say which it is.

    The system promises its memory when it is reserved or, not `promised`, sees when it is touched. A port that is
    dropped without being closed keeps its memory, as queued work may still use it.
    """

    def __init__(self, props: DeviceProps, *, promised: bool = True) -> None:
        self.props = props
        self._promised = promised
        self.name = f"{props.kind}:{props.index}"
        self._capacity = size_of(props.total_bytes, "total_bytes")
        self._reserved = 0
        self._segments: dict[int, int] = {}  # addresses, and how many bytes
        self._pinned: dict[int, int] = {}
        self._managed: dict[int, int] = {}
        self._pinned_there: dict[int, int] = {}  # somebody else's
        self._queues: dict[int, HostQueue] = {}
        self._spaces = HostSpaces(self)
        self._sharing = MachineSharing(self)
        self._queues_made = 0
        self.losses = 0  # how often memory went
        self._closed = False
        self._process: int | None = os.getpid()  # whose port this is; None when it was abandoned
        self._lock = (
            threading.RLock()
        )  # of all the above, never held during a call to the system; a destructor may re-enter

    def reserve(self, nbytes: int) -> int:
        nbytes, counted = size_of(nbytes), 0
        try:
            with self.locked():
                self._reserved += nbytes  # first, as a destructor may come in between
                counted = nbytes
                if self.over():
                    self._reserved -= nbytes
                    counted = 0
                    raise self.out_of_memory(nbytes)  # noqa: TRY301 -- whatever ends this, below is where the count is put right
            return self._keep(self._segments, map_memory(nbytes, promised=self._promised), nbytes)
        except BaseException as error:  # a signal's handler may raise anything
            self._reserved -= counted
            if isinstance(error, OSError):
                raise self.out_of_memory(nbytes, error) from None
            raise

    def release(self, address: int) -> None:
        nbytes = self._give_back(self._segments, address, "release", "reserve")
        self._sharing.forget(address)
        with self._lock:
            self._reserved -= nbytes
            self.losses += 1

    def reserve_space(self, nbytes: int, page: int) -> int:
        """Address space, of which no memory is counted."""
        return self._spaces.reserve(nbytes, page)

    def release_space(self, address: int) -> None:
        """WrongState while any of its pages has memory."""
        self._spaces.release(address)

    def commit(self, address: int, nbytes: int) -> None:
        """Zeroed memory, but for pages that have some already: those keep it."""
        self._spaces.commit(address, nbytes)

    def decommit(self, address: int, nbytes: int) -> None:
        """What these pages held is lost, and the system has the memory when this returns."""
        self._spaces.decommit(address, nbytes)
        with self._lock:
            self.losses += 1

    def memory_info(self) -> tuple[int, int]:
        with self.locked():
            return self._capacity - self.reserved, self._capacity

    def set_capacity(self, nbytes: int) -> None:
        nbytes = size_of(nbytes)
        with self.locked():
            if nbytes < self.reserved:
                raise WrongState(
                    f"the capacity of {self.name} cannot be {format_bytes(nbytes)} while "
                    f"{format_bytes(self.reserved)} are reserved: release memory first"
                )
            self._capacity = nbytes

    def pin(self, nbytes: int) -> int:
        """Host memory that is never swapped out. It does not count as the device's; DeviceError where none is left."""
        nbytes = size_of(nbytes)
        with self.locked():
            pass
        try:
            address = map_memory(nbytes)
        except OSError as error:
            raise self.refusal(error, f"there is no host memory for {format_bytes(nbytes)}") from None
        try:
            lock_memory(address, nbytes)
        except OSError as error:
            unmap_memory(address, nbytes)
            message = f"{format_bytes(nbytes)} of host memory cannot be pinned"
            remedy = ": pin less, or raise the limit on locked memory (`ulimit -l`, RLIMIT_MEMLOCK)"
            raise self.refusal(error, message, remedy) from None
        return self._keep(self._pinned, address, nbytes)

    def unpin(self, address: int) -> None:
        self._give_back(self._pinned, address, "unpin", "pin")

    def reserve_managed(self, nbytes: int) -> int:
        """Memory that the system sees when it is touched, as much as it has."""
        nbytes = size_of(nbytes)
        with self.locked():
            pass
        try:
            address = map_memory(nbytes, promised=False)
        except OSError as error:
            raise self.out_of_memory(nbytes, error) from None
        return self._keep(self._managed, address, nbytes)

    def release_managed(self, address: int) -> None:
        self._give_back(self._managed, address, "release_managed", "reserve_managed")
        with self._lock:
            self.losses += 1

    def pin_there(self, address: int, nbytes: int) -> None:
        """DeviceError where the process may lock no more, or has no memory there."""
        address, nbytes = address_of(address, "address"), size_of(nbytes)
        with self.locked():
            try:
                lock_memory(address, nbytes)
            except OSError as error:
                message = f"{format_bytes(nbytes)} of host memory at {address:#x} cannot be pinned"
                raise self.refusal(error, message) from None
            self._pinned_there[address] = nbytes

    def unpin_there(self, address: int) -> None:
        with self.locked():
            nbytes = self._pinned_there.pop(address, None)
            if nbytes is None:
                message = f"{self.name}: {address:#x} is not the address of memory that was pinned there"
                raise DeviceError(message, code=errno.EINVAL, call="unpin_there", device=self.name)
            self._unlock(address, nbytes)
            for other, length in self._pinned_there.items():  # they may share a page
                lock_memory(other, length)

    def _unlock(self, address: int, nbytes: int) -> None:
        with suppress(OSError):  # its owner has unmapped it meanwhile
            unlock_memory(address, nbytes)

    def share(self, address: int) -> tuple[bytes, int]:
        """The first time, the segment is mapped anew, with all that is in it, while the queues begin nothing.

        The host must not write to it meanwhile. In a forked child of this process it is shared no longer.
        """
        return self._sharing.share(address)

    def open_shared(self, handle: bytes) -> tuple[int, int]:
        """It does not count as this device's."""
        return self._sharing.open(handle)

    def close_shared(self, address: int) -> None:
        self._sharing.close(address)
        with self._lock:
            self.losses += 1

    def make_mark(self) -> SharedEvent:
        return self._sharing.make_mark()

    def open_mark(self, handle: bytes) -> SharedEvent:
        return self._sharing.open_mark(handle)

    def queue(self, priority: int = 0) -> HostQueue:
        priority = max(-100, min(integer_of(priority, "priority"), 100))
        with self.locked():
            queue = self._new_queue(self._new_handle(), priority)
            self._sharing.hold(queue)
            self._queues[queue.handle] = queue
            self._queues_made += 1
        return queue

    def queues(self) -> list[HostQueue]:
        """Those that have not ended."""
        return list(self._queues.values())

    def _new_handle(self) -> int:
        return self._queues_made

    def _new_queue(self, handle: int, priority: int) -> HostQueue:
        return HostQueue(self, handle, priority)

    def close(self) -> None:
        """Waits for all that is queued, then returns the memory; where a queue's thread still runs, it stays."""
        if self.forked():
            return
        with self._lock:
            self._closed = True
            queues = list(self._queues.values())
        with ExitStack() as steps:  # all of them, though a warning of one may have been made an error
            steps.callback(self._unmap_all)
            for queue in queues:
                steps.callback(queue.close)

    def forked(self) -> bool:
        """Whether it belongs to the process that this one was forked from."""
        return self._process != os.getpid()

    # For its queues and spaces

    def forget(self, handle: int) -> None:
        """For a queue that has ended."""
        with self._lock:
            self._queues.pop(handle, None)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """With the lock of a port that can be used; Forked or WrongState for one that cannot."""
        if self.forked():  # before the lock, which a thread of the parent may have held
            raise Forked(f"{self.name} was opened before this process was forked")
        with self._lock:
            if self._closed:
                raise WrongState(f"{self.name} was closed")
            yield

    def grows_at(self, address: int) -> bool:
        """Whether that lies in address space whose pages come and go."""
        return self._spaces.holds(address)

    def segment_at(self, address: int) -> tuple[int, int] | None:
        """Address and size of the segment in which that lies."""
        for start, nbytes in tuple(self._segments.items()):  # a destructor may add one meanwhile
            if start <= address < start + nbytes:
                return start, nbytes
        return None

    def memory(self) -> list[tuple[int, int]]:
        """All that queued work may use of the device's memory, addresses and sizes."""
        own = [*tuple(self._segments.items()), *tuple(self._managed.items())]
        return [*own, *self._spaces.memory(), *self._sharing.opened()]

    @contextmanager
    def laid_open(self, address: int, nbytes: int) -> Iterator[None]:  # noqa: ARG002 -- for who closes its memory
        """Inside, the host may read that segment, and put another mapping in its place."""
        yield

    def came(self, address: int, nbytes: int, segment: int) -> None:
        """For who must know which memory the device has: it can be touched now, in the segment that begins there."""

    def going(self, address: int, nbytes: int, *, part: bool = False) -> None:
        """It is about to go, all of a segment or a `part`. Also told of what never came."""

    @property
    def reserved(self) -> int:
        """Bytes of segments, and of pages that have memory."""
        return self._reserved + self._spaces.held

    def over(self) -> bool:
        """Whether that is more than there may be."""
        return self.reserved > self._capacity

    def refusal(self, error: OSError, message: str, remedy: str = "") -> DeviceError:
        call = str(error.filename)
        message = f"{self.name}: {message}: {call} says {error.strerror!r}{remedy}"
        return DeviceError(message, code=error.errno or 0, call=call, device=self.name)

    def out_of_memory(self, nbytes: int, error: OSError | None = None, lacks: str = "memory") -> OutOfMemory:
        free = self._capacity - self.reserved
        message = f"{self.name}: wanted {format_bytes(nbytes)}, {format_bytes(free)} free"
        message += f" of {format_bytes(self._capacity)}, {format_bytes(self.reserved)} reserved"
        if error:
            message += f", but the system has no {lacks}: {error.filename} says {error.strerror!r}"
        return OutOfMemory(
            message,
            wanted=nbytes,
            free=free,
            reserved=self.reserved,
            capacity=self._capacity,
            code=(error.errno or 0) if error else 0,
            call=str(error.filename) if error else "reserve",
            device=self.name,
        )

    def _unmap_all(self) -> None:
        with self._lock:
            if self._queues:
                return
            mappings = [*self._segments.items(), *self._pinned.items(), *self._managed.items()]
            self._segments.clear()
            self._pinned.clear()
            self._managed.clear()
            others, self._pinned_there = self._pinned_there, {}
        self._sharing.end()
        self._spaces.close()
        for address, nbytes in others.items():
            self._unlock(address, nbytes)
        for address, nbytes in mappings:
            self.going(address, nbytes)
            unmap_memory(address, nbytes)

    def _keep(self, mappings: dict[int, int], address: int, nbytes: int) -> int:
        try:
            with self.locked():
                mappings[address] = nbytes
            if mappings is self._segments:
                self.came(address, nbytes, address)
        except BaseException:
            mappings.pop(address, None)
            self.going(address, nbytes)
            unmap_memory(address, nbytes)
            raise
        return address

    def _give_back(self, mappings: dict[int, int], address: int, call: str, origin: str) -> int:
        address = integer_of(address, "address")
        with self.locked():
            nbytes = mappings.pop(address, None)
        if nbytes is None:
            message = f"{self.name}: {address:#x} is not the address of memory that `{origin}` gave"
            raise DeviceError(message, code=errno.EINVAL, call=call, device=self.name)
        try:
            self.going(address, nbytes)
            unmap_memory(address, nbytes)
        except OSError as error:  # it has too many mappings to make a hole in one
            self._keep(mappings, address, nbytes)
            raise self.refusal(error, "the memory cannot be returned") from None
        return nbytes
