"""Memory of a Metal device, and the table that finds the buffer of an address.

Forebay's addresses are ints, and Metal's memory consists of buffers. The address of memory that the host can access is
that of the buffer's contents, so that host functions and `host_alias_storage` use it as it is. Memory that only the
device can access has addresses of its own: a range of the process's address space without access. `gpuAddress` could
equal an address of the host; a reserved range cannot, and an access by the host is an error instead of a read of other
memory.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from forebay.backends.metal.calls import metal, new
from forebay.vendor import reserve_pages, unmap_memory

__all__ = ["Region", "Regions", "contents_address", "new_heap_buffer", "new_shared_buffer"]

_start = attrgetter("start")


@dataclass(frozen=True, eq=False)
class Region:
    """Memory of one buffer."""

    start: int  # address
    nbytes: int
    buffer: Any  # an MTLBuffer
    shared: bool  # whether the host can access it
    length: int  # of the buffer, which may end before the region
    heap: Any = None  # its MTLHeap, if any
    allocated: int = 0  # bytes that the device counts for it, without a heap

    @property
    def end(self) -> int:
        return self.start + self.nbytes

    def drop_addresses(self) -> None:
        """Return the address range of private memory to the process."""
        if not self.shared:
            unmap_memory(self.start, self.nbytes)


class Regions:
    """The regions of a port, ordered by address. Reading needs no lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._table: tuple[Region, ...] = ()

    def add(self, region: Region) -> None:
        with self._lock:
            table = list(self._table)
            insort(table, region, key=_start)
            self._table = tuple(table)

    def remove(self, start: int) -> Region | None:
        """Remove and return the region that begins at an address."""
        with self._lock:
            found = self.find(start)
            if found is None or found.start != start:
                return None
            self._table = tuple(region for region in self._table if region is not found)
            return found

    def find(self, address: int) -> Region | None:
        """Return the region that contains an address; None for other memory of the host."""
        table = self._table
        at = bisect_right(table, address, key=_start) - 1
        return table[at] if at >= 0 and address < table[at].end else None

    def all(self) -> tuple[Region, ...]:
        return self._table


def contents_address(buffer: Any) -> int:
    """Return the address of a shared buffer's contents."""
    view = buffer.contents().as_buffer(1)
    address: int = np.frombuffer(view, np.uint8).ctypes.data
    return address


def new_heap_buffer(device: Any, nbytes: int, shared: bool) -> Region | None:
    """Return a new heap with one buffer that spans it; None if Metal has no memory.

    forebay places its buffers inside. A placement heap is preferred, in which the buffer begins at offset 0 by
    definition. If the device has none in this storage mode, the heap is automatic; its only buffer begins there, too.
    Hazards are tracked, which heaps do not do by default: work of one queue is ordered without fences.
    """
    api = metal()
    mode = api.MTLStorageModeShared if shared else api.MTLStorageModePrivate
    options = api.MTLResourceStorageModeShared if shared else api.MTLResourceStorageModePrivate
    options |= api.MTLResourceHazardTrackingModeTracked
    length = min(nbytes, int(device.maxBufferLength()))
    needed = device.heapBufferSizeAndAlignWithLength_options_(length, options)
    for kind in (api.MTLHeapTypePlacement, api.MTLHeapTypeAutomatic):
        descriptor = api.MTLHeapDescriptor.alloc().init()
        descriptor.setType_(kind)
        descriptor.setStorageMode_(mode)
        descriptor.setHazardTrackingMode_(api.MTLHazardTrackingModeTracked)
        descriptor.setSize_(max(nbytes, int(needed.size)))
        heap = new(device.newHeapWithDescriptor_, descriptor)
        if heap is None:
            continue
        if kind == api.MTLHeapTypePlacement:
            buffer = new(heap.newBufferWithLength_options_offset_, length, options, 0)
        else:
            buffer = new(heap.newBufferWithLength_options_, length, options)
        if buffer is not None:
            start = contents_address(buffer) if shared else reserve_pages(nbytes, charged=False)
            return Region(start, nbytes, buffer, shared, length, heap)
    return None


def new_shared_buffer(device: Any, nbytes: int) -> Region | None:
    """Return a new buffer outside of heaps that the host can access; None if Metal has no memory."""
    api = metal()
    options = api.MTLResourceStorageModeShared | api.MTLResourceHazardTrackingModeTracked
    buffer = new(device.newBufferWithLength_options_, nbytes, options)
    if buffer is None:
        return None
    return Region(contents_address(buffer), nbytes, buffer, True, nbytes, allocated=int(buffer.allocatedSize()))
