"""Port of a Metal device: its memory and its queues."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import MutableMapping
from contextlib import ExitStack
from itertools import count
from typing import Any
from weakref import WeakSet

from forebay.backends.metal import tool_trace
from forebay.backends.metal.busy_times import BusyTimes
from forebay.backends.metal.calls import autorelease_pool, invoke
from forebay.backends.metal.capture import MetalCapturedGraph
from forebay.backends.metal.kernels.library import Kernels
from forebay.backends.metal.kernels.shaders import ShaderLibrary, compile_shader, load_library
from forebay.backends.metal.memory import Region, Regions, new_heap_buffer, new_shared_buffer
from forebay.backends.metal.queue import MetalQueue
from forebay.errors import DeviceError, Forked, OutOfMemory, WrongState
from forebay.spi import DeviceProps
from forebay.vendor import ReleaseLog, cuda_errors, integer_of, out_of_memory_error, size_of

__all__ = ["MetalPort"]

_STEP = 0x80  # between handles, which are even as those of other drivers


class MetalPort:
    """An open Metal device."""

    def __init__(self, props: DeviceProps, device: Any) -> None:
        self.props: DeviceProps = props
        self.device: Any = device  # an MTLDevice
        self.name: str = f"{props.kind}:{props.index}"
        self.regions: Regions = Regions()  # all memory that has a buffer
        self.kernels: Kernels = Kernels(device, self.name)
        self.busy_times: BusyTimes = BusyTimes()
        self.releases: ReleaseLog = ReleaseLog()  # see `forebay.vendor.MemorySource`
        self._lock = threading.RLock()
        self._queues: dict[int, MetalQueue] = {}
        self._handles = count(_STEP, _STEP)
        self._segments: dict[int, Region] = {}  # by address
        self._pinned: dict[int, Region] = {}
        self._outside: WeakSet[Region] = WeakSet()  # memory that does not count as the device's
        self._closed = False
        self._process = os.getpid()
        _ports.add(self)

    # ---- Memory

    def reserve(self, nbytes: int) -> int:
        """Reserve memory that the host can access if the device shares its memory, else private memory."""
        heaps = self.props.heaps
        return self._reserve(nbytes, shared=heaps is not None and heaps.unified)

    def reserve_private(self, nbytes: int) -> int:
        return self._reserve(nbytes, shared=False)

    def reserve_shared(self, nbytes: int) -> int:
        return self._reserve(nbytes, shared=True)

    def _reserve(self, nbytes: int, *, shared: bool) -> int:
        nbytes = size_of(nbytes)
        self._check_open()
        heaps = self.props.heaps
        with autorelease_pool():
            free, _ = self.memory_info()
            region: Region | None = None
            if nbytes <= free and heaps is not None:
                if shared and not heaps.unified:  # heaps of such devices are private
                    region = invoke(self.name, new_shared_buffer, self.device, nbytes)
                else:
                    region = invoke(self.name, new_heap_buffer, self.device, nbytes, shared)
            if region is None:
                raise self._out_of_memory(nbytes)
        self.regions.add(region)
        self._segments[region.start] = region
        return region.start

    def release(self, address: int) -> None:
        address = integer_of(address, "address")
        self._check_open()
        with autorelease_pool():
            self._remove(self._segments, address, "release", "reserve")

    def pin(self, nbytes: int) -> int:
        """Allocate a buffer of host memory, which the GPU accesses, too."""
        nbytes = size_of(nbytes)
        self._check_open()
        region = self._new_outside(nbytes)
        self.regions.add(region)
        self._pinned[region.start] = region
        return region.start

    def unpin(self, address: int) -> None:
        address = integer_of(address, "address")
        self._check_open()
        with autorelease_pool():
            self._remove(self._pinned, address, "unpin", "pin")

    def scratch(self, nbytes: int) -> Region:
        """Return shared memory for work that is being queued. Its last user removes it from `regions`."""
        region = self._new_outside(nbytes)
        self.regions.add(region)
        return region

    def _new_outside(self, nbytes: int) -> Region:
        region: Region | None = None
        with autorelease_pool():
            if self._fits(nbytes):
                region = invoke(self.name, new_shared_buffer, self.device, nbytes)
        if region is None:
            raise self._out_of_memory(nbytes)
        self._outside.add(region)
        return region

    def _fits(self, nbytes: int) -> bool:
        return nbytes <= int(invoke(self.name, self.device.maxBufferLength))

    def memory(self) -> list[tuple[int, int]]:
        """Return address and size of each range of device memory that queued work may use."""
        return [(region.start, region.nbytes) for region in self.regions.all()]

    def memory_info(self) -> tuple[int, int]:
        self._check_open()
        total = self.props.total_bytes
        with autorelease_pool():
            allocated = int(invoke(self.name, self.device.currentAllocatedSize))
        outside = sum(region.allocated for region in tuple(self._outside))
        return max(total - max(allocated - outside, 0), 0), total

    def memory_device(self, address: int) -> int | None:
        address = integer_of(address, "address")
        self._check_open()
        return None if self.regions.find(address) is None else self.props.index

    def process_memory(self) -> dict[int, int]:
        """Return this process only: macOS does not publish what others use."""
        free, total = self.memory_info()
        return {os.getpid(): total - free}

    # ---- Queues and shaders

    def queue(self, priority: int = 0) -> MetalQueue:
        integer_of(priority, "priority")  # command queues have none
        with self._lock:
            self._check_open()
            handle = next(self._handles) if self._queues else 0
            new = self._queues[handle] = MetalQueue(self, handle)
        return new

    def new_graph(self, first: MetalQueue, mode: str, queues: MutableMapping[int, int]) -> MetalCapturedGraph:
        """Return a graph that begins to capture the work of a queue."""
        return MetalCapturedGraph(first, mode, queues)

    def settled(self) -> bool:
        return all(queue.settled() for queue in tuple(self._queues.values()) if not queue.closed)

    def note_busy(self, begin: float, end: float) -> None:
        """Note a time, in seconds, in which the GPU ran work of this port."""
        self.busy_times.add(begin, end)

    def compile_shader(self, source: str, *, fast_math: bool = False) -> ShaderLibrary:
        self._check_open()
        return compile_shader(self.kernels, source, fast_math=fast_math)

    def load_shader_library(self, content: bytes) -> ShaderLibrary:
        self._check_open()
        return load_library(self.kernels, content)

    def tool_trace_enabled(self) -> bool:
        self._check_open()
        return tool_trace.is_enabled(self.name)

    def begin_tool_trace(self, path: str) -> None:
        self._check_open()
        tool_trace.begin(self.device, path, self.name)

    def end_tool_trace(self) -> None:
        self._check_open()
        for queue in tuple(self._queues.values()):  # the file has the command buffers that are committed
            queue.flush()
        tool_trace.end(self.name)

    def tool_trace_active(self) -> bool:
        self._check_open()
        return tool_trace.is_active(self.name)

    # ---- Life

    def close(self) -> None:
        """Complete the queued work and free all memory."""
        if self.forked():
            return
        with self._lock:
            self._closed = True  # `queue` creates none from now on
        with ExitStack() as stack:  # runs all of these, even if a warning in one is an error
            stack.callback(self._free_all)
            for queue in tuple(self._queues.values()):
                stack.callback(queue.close)

    def forked(self) -> bool:
        """Return True if the port belongs to a parent process."""
        return self._process != os.getpid()

    def _check_open(self) -> None:
        if self.forked():
            raise Forked(f"{self.name} was opened before this process was forked: Metal does not survive a fork")
        if self._closed:
            raise WrongState(f"{self.name} was closed")

    def _free_all(self) -> None:
        with autorelease_pool():
            self._segments.clear()
            self._pinned.clear()
            for region in self.regions.all():
                self.regions.remove(region.start)
                region.drop_addresses()
            self.kernels.clear()

    def _remove(self, known: dict[int, Region], address: int, call: str, origin: str) -> None:
        region = known.pop(address, None)
        if region is None:
            message = f"{self.name}: {address:#x} is not the address of memory that `{origin}` returned"
            raise DeviceError(message, code=cuda_errors.INVALID_VALUE, call=call, device=self.name)
        self.releases.note(address, region.nbytes)  # a capture that ends before the second one knows it
        self.regions.remove(address)
        self.releases.note(address, region.nbytes)
        region.drop_addresses()

    def _out_of_memory(self, nbytes: int) -> OutOfMemory:
        free, total = self.memory_info()
        reserved = sum(region.nbytes for region in tuple(self._segments.values()))
        return out_of_memory_error(
            self.name,
            nbytes,
            free=free,
            capacity=total,
            reserved=reserved,
            longest=self.props.heaps.longest if self.props.heaps else 0,
            code=cuda_errors.OUT_OF_MEMORY,
            call="newHeapWithDescriptor:",
        )


_ports: WeakSet[MetalPort] = WeakSet()


def _keep_in_child() -> None:
    """Keep the parent's objects alive in a forked child, where Metal must not be used, not even to release them."""
    for port in tuple(_ports):
        for kept in (port, *port.kernels.all):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


os.register_at_fork(after_in_child=_keep_in_child)
