"""Base of ports whose device is this machine: host memory with a capacity, and native threads as queues."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from weakref import WeakValueDictionary

from forebay import _core
from forebay._base.byte_sizes import format_bytes
from forebay._base.device_spec import Device, canonical
from forebay.backends.common._segments import HostSegments
from forebay.backends.common.arguments import address_of, integer_of, size_of
from forebay.backends.common.mmap import lock_memory, map_memory, unlock_memory, unmap_memory
from forebay.backends.common.shared_slots import SharedEvent
from forebay.backends.host.address_space import HostAddressSpaces
from forebay.backends.host.capture import HostCapturedGraph
from forebay.backends.host.ipc import IpcMemory
from forebay.backends.host.queue import HostQueue
from forebay.errors import DeviceError, Forked, OutOfMemory, WrongState
from forebay.spi import DeviceProps

__all__ = ["BaseHostPort"]


class BaseHostPort(HostSegments):
    """An open device with memory of this machine, up to a capacity, and native threads as queues.

    Memory counts against the system's commit limit when it is reserved, unless not `charged` (see `mmap.map_memory`).
    A port that is dropped without being closed keeps its memory mapped, as queued work may still use it.
    """

    def __init__(self, props: DeviceProps, *, charged: bool = True) -> None:
        self.props = props
        self.charged = charged
        self.name: str = str(canonical(Device(props.kind, props.index)))
        self._capacity = size_of(props.total_bytes, "total_bytes")
        self._withheld = 0  # bytes of the capacity that cannot be reserved
        self._pinned: dict[int, int] = {}
        self._managed: dict[int, int] = {}
        self._pinned_in_place: dict[int, int] = {}
        self._queues: dict[int, HostQueue] = {}
        self._spaces = HostAddressSpaces(self)
        self._sharing = IpcMemory(self)
        self._queues_made = 0
        self._closed = False
        self._process = os.getpid()
        self._lock = threading.RLock()  # of all the above; not held during slow system calls; destructors re-enter it
        self.visitors: set[HostQueue] = set()  # queues of other ports that have launched graphs over memory of this one
        _ports[id(self)] = self

    def reserve_space(self, nbytes: int, page: int) -> int:
        return self._spaces.reserve(nbytes, page)

    def release_space(self, address: int) -> None:
        self._spaces.release(address)

    def commit(self, address: int, nbytes: int) -> None:
        """Commit zeroed memory; pages that are committed keep their contents."""
        self._spaces.commit(address, nbytes)

    def decommit(self, address: int, nbytes: int) -> None:
        self._spaces.decommit(address, nbytes)

    def memory_info(self) -> tuple[int, int]:
        with self.locked():
            return self._free(), self._capacity

    def set_capacity(self, nbytes: int) -> None:
        nbytes = size_of(nbytes)
        with self.locked():
            if nbytes < self.reserved:
                raise WrongState(
                    f"the capacity of {self.name} cannot be set to {format_bytes(nbytes)} while "
                    f"{format_bytes(self.reserved)} are reserved: release memory first"
                )
            self._capacity = nbytes

    def pin(self, nbytes: int) -> int:
        """Allocate locked host memory, which does not count as the device's. Raises DeviceError if there is none."""
        nbytes = size_of(nbytes)
        with self.locked():
            pass
        try:
            address = map_memory(nbytes)
        except OSError as error:
            raise self.device_error(error, f"{format_bytes(nbytes)} of host memory cannot be allocated") from None
        try:
            lock_memory(address, nbytes)
        except OSError as error:
            unmap_memory(address, nbytes)
            message = f"{format_bytes(nbytes)} of host memory cannot be pinned"
            remedy = ": pin less, or raise the limit on locked memory (`ulimit -l`, RLIMIT_MEMLOCK)"
            raise self.device_error(error, message, remedy) from None
        return self._register(self._pinned, address, nbytes)

    def reserve_managed(self, nbytes: int) -> int:
        nbytes = size_of(nbytes)
        with self.locked():
            pass
        try:
            address = map_memory(nbytes, charged=False)
        except OSError as error:
            raise self.out_of_memory(nbytes, error) from None
        return self._register(self._managed, address, nbytes)

    def pin_in_place(self, address: int, nbytes: int) -> None:
        address, nbytes = address_of(address, "address"), size_of(nbytes)
        with self.locked():
            try:
                lock_memory(address, nbytes)
            except OSError as error:
                message = f"{format_bytes(nbytes)} of host memory at {address:#x} cannot be pinned"
                raise self.device_error(error, message) from None
            self._pinned_in_place[address] = nbytes

    def unpin_in_place(self, address: int) -> None:
        with self.locked():
            nbytes = self._pinned_in_place.pop(address, None)
            if nbytes is None:
                message = f"{self.name}: {address:#x} is not the address of memory that was pinned in place"
                raise DeviceError(message, code=errno.EINVAL, call="unpin_in_place", device=self.name)
            self._unlock(address, nbytes)
            for other, length in self._pinned_in_place.items():  # other ranges may share a page
                lock_memory(other, length)

    def _unlock(self, address: int, nbytes: int) -> None:
        with suppress(OSError):  # its owner may have unmapped it
            unlock_memory(address, nbytes)

    def share(self, address: int) -> tuple[bytes, int]:
        """Share a segment.

        The first call maps the segment anew, with its content, while the queues start no work; the host must not write
        to it during the call. A forked child of this process gets a private copy.
        """
        return self._sharing.share(address)

    def open_shared(self, handle: bytes) -> tuple[int, int]:
        """Map a segment of another process, which does not count as memory of this device."""
        return self._sharing.open(handle)

    def close_shared(self, address: int) -> None:
        self._sharing.close(address)

    def make_mark(self) -> SharedEvent:
        return self._sharing.make_mark()

    def open_mark(self, handle: bytes) -> SharedEvent:
        return self._sharing.open_mark(handle)

    def queue(self, priority: int = 0) -> HostQueue:
        priority = max(-100, min(integer_of(priority, "priority"), 100))
        with self.locked():
            queue = self._new_queue(self._new_handle(), priority)
            self._sharing.on_new_queue(queue)
            self._queues[queue.handle] = queue
            self._queues_made += 1
        return queue

    def queues(self) -> list[HostQueue]:
        """Return the queues that are not closed."""
        return list(self._queues.values())

    def settled(self) -> bool:
        return _core.all_settled(tuple(self._queues.values()))

    def drain(self) -> None:
        """Wait until the work that is queued now has completed, also on queues of other ports that use this memory.

        Failures of the work are left for `Queue.wait`. Raises WrongState on the thread of one of the queues.
        """
        queues = (*tuple(self._queues.values()), *tuple(self.visitors))
        if not _core.all_settled(queues):
            for queue in queues:
                queue.drain()
        if self.visitors:
            self.visitors -= {queue for queue in queues if queue.closed}

    def peers(self) -> list[BaseHostPort]:
        """Return all ports over this machine's memory that the process has opened."""
        return [port for ref in _ports.valuerefs() if (port := ref()) is not None]

    def new_graph(self, first: HostQueue, mode: str, queues: MutableMapping[int, int]) -> HostCapturedGraph:
        """Return a graph that begins to capture the work of a queue."""
        return HostCapturedGraph(first, mode, queues)

    def _new_handle(self) -> int:
        return self._queues_made

    def _new_queue(self, handle: int, priority: int) -> HostQueue:
        return HostQueue(self, handle, priority)

    def close(self) -> None:
        """Complete the queued work, then unmap the memory, unless a queue's thread is still running."""
        if self.forked():
            return
        with self._lock:
            self._closed = True
            queues = list(self._queues.values())
        with ExitStack() as stack:  # runs all callbacks, even if a warning in one is an error
            stack.callback(self._unmap_all)
            for queue in queues:
                stack.callback(queue.close)

    def forked(self) -> bool:
        """Return True if the port belongs to a parent process."""
        return self._process != os.getpid()

    # ---- For its queues and address space

    def remove_queue(self, handle: int) -> None:
        """Remove a closed queue."""
        with self._lock:
            self._queues.pop(handle, None)

    def check_open(self) -> None:
        """Raise Forked or WrongState if the port is not usable."""
        if self.forked():
            raise Forked(f"{self.name} was opened before this process was forked")
        if self._closed:
            raise WrongState(f"{self.name} was closed")

    def on_released(self, address: int) -> None:
        """Handle the release of a segment."""
        self._sharing.on_release(address)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the port's lock. Raises Forked or WrongState if the port is not usable."""
        if self.forked():  # before locking: a thread of the parent may have held the lock
            raise Forked(f"{self.name} was opened before this process was forked")
        with self._lock:
            if self._closed:
                raise WrongState(f"{self.name} was closed")
            yield

    def is_expandable(self, address: int) -> bool:
        """Return True if an address lies in expandable address space."""
        return self._spaces.contains(address)

    def segment_at(self, address: int) -> tuple[int, int] | None:
        """Return address and size of the segment that contains an address."""
        for start, nbytes in self.segments():
            if start <= address < start + nbytes:
                return start, nbytes
        return None

    def memory(self) -> list[tuple[int, int]]:
        """Return address and size of each range of memory that queued work may use."""
        own = [*self.segments(), *tuple(self._managed.items()), *tuple(self._pinned.items())]
        return [*own, *self._spaces.memory(), *self._sharing.opened()]

    @contextmanager
    def host_accessible(self, address: int, nbytes: int) -> Iterator[None]:  # noqa: ARG002 -- for subclasses
        """Allow the host to access and remap a segment inside the block."""
        yield

    def on_mapped(self, address: int, nbytes: int, segment: int) -> None:
        """Handle new accessible memory in the segment that begins at `segment`; for subclasses."""

    def on_unmapping(self, address: int, nbytes: int, *, part: bool = False) -> None:
        """Handle memory that is about to be unmapped: a whole segment or a `part`; for subclasses.

        Also called for memory that was never reported to `on_mapped`.
        """

    @property
    def reserved(self) -> int:
        """Bytes of segments and committed pages."""
        return self.segment_bytes + self._spaces.held

    def over_capacity(self) -> bool:
        """Return True if more is reserved than the capacity, less what is withheld."""
        return self.reserved > self._capacity - self._withheld

    def _free(self) -> int:
        return max(self._capacity - self._withheld - self.reserved, 0)  # a request may be counted before it fails

    def device_error(self, error: OSError, message: str, remedy: str = "") -> DeviceError:
        call = str(error.filename)
        message = f"{self.name}: {message}: {call} failed: {error.strerror}{remedy}"
        return DeviceError(message, code=error.errno or 0, call=call, device=self.name)

    def out_of_memory(self, nbytes: int, error: OSError | None = None, lacks: str = "memory") -> OutOfMemory:
        free = self._free()
        message = f"{self.name}: requested {format_bytes(nbytes)}, {format_bytes(free)} free"
        message += f" of {format_bytes(self._capacity)}, {format_bytes(self.reserved)} reserved"
        if error:
            message += f", but the system has no {lacks}: {error.filename} failed: {error.strerror}"
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
            mappings = [*self.take_segments(), *self._pinned.items(), *self._managed.items()]
            self._pinned.clear()
            self._managed.clear()
            others, self._pinned_in_place = self._pinned_in_place, {}
        self._sharing.close_all()
        self._spaces.close()
        for address, nbytes in others.items():
            self._unlock(address, nbytes)
        for address, nbytes in mappings:
            self.on_unmapping(address, nbytes)
            unmap_memory(address, nbytes)

    def _register(self, mappings: dict[int, int], address: int, nbytes: int) -> int:
        try:
            with self.locked():
                mappings[address] = nbytes
        except BaseException:
            mappings.pop(address, None)
            self.on_unmapping(address, nbytes)
            unmap_memory(address, nbytes)
            raise
        return address


_ports: WeakValueDictionary[int, BaseHostPort] = WeakValueDictionary()  # by identity
