"""Port of a CUDA device: its memory and its queues."""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping
from contextlib import ExitStack, suppress
from threading import RLock
from typing import TYPE_CHECKING, Any

from forebay.backends.nvidia._memory import DriverMemory, destroy_last, obtain
from forebay.backends.nvidia._stream import ALL_DEVICES, NO_DEVICE
from forebay.backends.nvidia.address_space import CudaAddressSpaces
from forebay.backends.nvidia.calls import call_into, check, driver_api, error_of
from forebay.backends.nvidia.capture import CudaCapturedGraph
from forebay.backends.nvidia.context import PrimaryContext
from forebay.backends.nvidia.graph_executables import destroy_all
from forebay.backends.nvidia.ipc import CudaIpc
from forebay.backends.nvidia.logging_queue import queue_class
from forebay.backends.nvidia.process_usage import process_memory
from forebay.backends.nvidia.queue import CudaQueue
from forebay.errors import ForebayError, OutOfMemory, WrongState
from forebay.spi import DeviceProps
from forebay.vendor import SharedEvent, cuda_errors, integer_of, out_of_memory_error, size_of

__all__ = ["CudaPort"]

_BUSY, _PAUSE = 0.0002, 0.00002  # seconds of a wait without pauses, and between two queries after them
_RESERVED_HANDLES = {  # which denote a stream of the thread's current context
    0: "the default stream",
    1: "the default stream",
    2: "the default stream of the calling thread",
}


class CudaPort(DriverMemory):
    """An open CUDA device."""

    if TYPE_CHECKING:

        @property
        def context(self) -> PrimaryContext: ...

    def __init__(self, props: DeviceProps, context: PrimaryContext) -> None:
        super().__init__(context)
        self.props: DeviceProps = props
        self._lock = RLock()
        self._queues: list[CudaQueue] = []
        self._external: dict[int, CudaQueue] = {}  # by handle
        self._spaces = CudaAddressSpaces(context, self.releases, self.out_of_memory)
        self._sharing = CudaIpc(context, self.segments, self.shared_handles, self._spaces)
        self._closed = False
        with context.current() as api:
            self._priorities = check(api.cuCtxGetStreamPriorityRange(), "cuCtxGetStreamPriorityRange", self.name)

    def memory(self) -> list[tuple[int, int]]:
        """Return address and size of each range of device memory that queued work may use."""
        own = [(address, nbytes) for address, (_, nbytes) in tuple(self.segments.items())]
        return [*own, *tuple(self.managed.items()), *self._spaces.memory(), *self._sharing.opened()]

    def memory_info(self) -> tuple[int, int]:
        with self.context.current() as api:
            free, total = check(api.cuMemGetInfo(), "cuMemGetInfo", self.name)
        return int(free), int(total)

    def queue(self, priority: int = 0) -> CudaQueue:
        priority = integer_of(priority, "priority")
        least, greatest = self._priorities
        made: list[CudaQueue] = []
        try:
            with self._lock:
                self._check_open()
                handle = None if self._queues else 0  # the default stream
                queue_class()(self, self.context, max(greatest, min(priority, least)), handle=handle, made=made)
                self._queues.extend(made)
        except BaseException:
            for queue in made:  # a signal handler raised: the caller does not get it
                self._queues = [each for each in self._queues if each is not queue]
                queue.destroy_events()
                queue.destroy()
            raise
        return made[0]

    def external_queue(self, handle: int) -> CudaQueue:
        handle = integer_of(handle, "handle")
        with self._lock:
            self._check_open()
            self._check_stream(handle)  # each time: the handle may be that of a new stream of another context
            found = self._external.get(handle)
            if found is None or found.closed:
                found = self._external[handle] = queue_class()(self, self.context, handle=handle)
        return found

    def new_graph(self, first: CudaQueue, mode: str, queues: MutableMapping[int, int]) -> CudaCapturedGraph:
        """Return a graph that begins to capture the work of a queue."""
        return CudaCapturedGraph(first, mode, queues)

    def synchronize(self) -> None:
        with self.context.current() as api:
            made: list[tuple[str, Any]] = []
            try:  # wait in a way that signals can interrupt
                flags = api.CUevent_flags.CU_EVENT_DISABLE_TIMING
                event = check(obtain(made, "cuEventDestroy", api.cuEventCreate, flags), "cuEventCreate", self.name)
                check(api.cuCtxRecordEvent(self.context.handle, event), "cuCtxRecordEvent", self.name)
                self._wait_for_event(event)
            finally:
                destroy_last(made)
            check(api.cuCtxSynchronize(), "cuCtxSynchronize", self.name)  # prints what kernels have printed

    def memory_device(self, address: int) -> int | None:
        address = integer_of(address, "address")
        self._check_open()
        index = (self._queues[0] if self._queues else self.queue()).memory_device(address)
        return None if index == NO_DEVICE else self.props.index if index == ALL_DEVICES else index

    def pin(self, nbytes: int) -> int:
        nbytes = size_of(nbytes)
        made: list[Any] = []
        try:
            with self.context.current() as api:
                call_into(made, api.cuMemHostAlloc, nbytes, api.CU_MEMHOSTALLOC_PORTABLE)  # as PyTorch's
                address = int(check(made[0], "cuMemHostAlloc", self.name))
                self.pinned[address] = nbytes
        except BaseException:
            self._undo(made, "cuMemFreeHost", self.pinned)
            raise
        return address

    def reserve_managed(self, nbytes: int) -> int:
        nbytes = size_of(nbytes)
        made: list[Any] = []
        try:
            with self.context.current() as api:
                call_into(made, api.cuMemAllocManaged, nbytes, api.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)
                address = self._address_of(made[0], nbytes, "cuMemAllocManaged")
                self.managed[address] = nbytes
        except BaseException:
            self._undo(made, "cuMemFree", self.managed)
            raise
        return address

    def reserve_space(self, nbytes: int, page: int) -> int:
        return self._spaces.reserve(nbytes, page)

    def release_space(self, address: int) -> None:
        self._spaces.release(address)

    def commit(self, address: int, nbytes: int) -> None:
        self._spaces.commit(address, nbytes)

    def decommit(self, address: int, nbytes: int) -> None:
        self._spaces.decommit(address, nbytes)

    def share(self, address: int) -> tuple[bytes, int]:
        self._check_open()
        return self._sharing.share(address)

    def open_shared(self, handle: bytes) -> tuple[int, int]:
        self._check_open()
        return self._sharing.open(handle)

    def close_shared(self, address: int) -> None:
        self._sharing.close(address)
        self.releases.note(address, 0)

    def make_mark(self) -> SharedEvent:
        self._check_open()
        return self._sharing.make_mark()

    def open_mark(self, handle: bytes) -> SharedEvent:
        self._check_open()
        return self._sharing.open_mark(handle)

    def process_memory(self) -> dict[int, int]:
        return process_memory(str(self.props.details["uuid"]), self.name)

    def close(self) -> None:
        """Complete the queued work, free all memory, and release the context."""
        if self.context.forked():
            return
        with self._lock:  # `queue` creates none from now on
            if self._closed:
                return
            self._closed = True
        with ExitStack() as stack:  # runs all of these, even if a warning in one is an error
            stack.callback(self.context.release)
            stack.callback(self._free_all)
            stack.callback(destroy_all, self.context)
            for queue in (*self._queues, *self._external.values()):
                stack.callback(queue.destroy)
                stack.callback(queue.close)

    def out_of_memory(self, nbytes: int, function: str) -> OutOfMemory:
        """Return the error of a call for which the device has too little memory."""
        free, total = self.memory_info()
        reserved = sum(size for _, size in tuple(self.segments.values())) + self._spaces.held
        return out_of_memory_error(
            self.name,
            nbytes,
            free=free,
            capacity=total,
            reserved=reserved,
            code=cuda_errors.OUT_OF_MEMORY,
            call=function,
        )

    def _wait_for_event(self, event: Any) -> None:
        """Poll an event, at first without a pause."""
        query, busy_until = driver_api().cuEventQuery, time.monotonic() + _BUSY
        while (result := query(event))[0] and int(result[0]) == cuda_errors.NOT_READY:
            time.sleep(0 if time.monotonic() < busy_until else _PAUSE)
        check(result, "cuEventQuery", self.name)

    def _check_open(self) -> None:
        """Raise Forked or WrongState if the port cannot be used."""
        self.context.check_usable()
        if self._closed:
            raise WrongState(f"{self.name} was closed")

    def _check_stream(self, handle: int) -> None:
        """Raise DeviceError unless a handle is that of a stream of this context."""
        if handle in _RESERVED_HANDLES:
            error = error_of(cuda_errors.INVALID_HANDLE, "external_queue", self.name)
            error.add_note(f"{handle} is not a stream, but {_RESERVED_HANDLES[handle]}")
            raise error
        context = self.context.invoke(driver_api().cuStreamGetCtx, handle)
        owner = int(check(context, "cuStreamGetCtx", self.name))
        if owner != self.context.handle:
            error = error_of(cuda_errors.INVALID_HANDLE, "cuStreamGetCtx", self.name)
            error.add_note(
                f"stream {handle:#x} belongs to context {owner:#x}, not to the primary context of {self.name}, which "
                f"is {self.context.handle:#x}"
            )
            raise error

    def _address_of(self, result: Any, nbytes: int, function: str) -> int:
        if int(result[0]) == cuda_errors.OUT_OF_MEMORY:
            raise self.out_of_memory(nbytes, function)
        return int(check(result, function, self.name))

    def _free_all(self) -> None:
        """Free all memory. Errors are ignored: a lost device has none to free."""
        with suppress(ForebayError):
            self._sharing.close_all()
        with suppress(ForebayError):
            self._spaces.close()
        tables: tuple[tuple[dict[int, Any], Callable[[int], None]], ...] = (
            (self.segments, self.release),
            (self.managed, self.release_managed),
            (self.pinned, self.unpin),
            (self.pinned_in_place, self.unpin_in_place),
        )
        for table, release in tables:
            for address in tuple(table):
                with suppress(ForebayError):
                    release(address)

    def _undo(self, made: list[Any], function: str, known: dict[int, int]) -> None:
        """Release what interrupted calls have allocated."""
        for code, *addresses in made:
            if not code:
                known.pop(int(addresses[0]), None)
                self.context.try_to_invoke(function, int(addresses[0]))
