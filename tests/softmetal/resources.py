"""Buffers and heaps."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import constants as k
from .control import control
from .objects import Descriptor, Labeled, NSObject, instance, properties, unsigned
from .storage import BorrowedStorage, Region, Storage

_STORAGE = {0: "shared", 1: "managed", 2: "private", 3: "memoryless"}
_KNOWN_OPTIONS = 0x1 | 0x30 | 0x300


class MTLSizeAndAlign(NamedTuple):
    size: int
    align: int


def round_up(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple


def storage_mode(options: int) -> int:
    return (options >> k.MTLResourceStorageModeShift) & 0xF


def cache_mode(options: int) -> int:
    return options & 0xF


def tracking_mode(options: int) -> int:
    return (options >> k.MTLResourceHazardTrackingModeShift) & 0x3


def check_options(device: Any, options: int) -> int:
    """Check the options of a buffer and return its storage mode."""
    if options & ~_KNOWN_OPTIONS or tracking_mode(options) == 3:
        control.violated("options", f"options are {options:#x}")
    mode = storage_mode(options)
    if mode == k.MTLStorageModeMemoryless:
        control.violated("memoryless", f"options are {options:#x}")
    if mode == k.MTLStorageModeManaged and device._gpu.unified:
        control.violated("managed", f"options are {options:#x} on {device._gpu.name}")
    return mode


class VarList(NSObject):
    """`objc.varlist`: memory of unknown length."""

    __slots__ = ("_region",)

    def __init__(self, region: Region) -> None:
        super().__init__()
        self._region = region

    def as_buffer(self, count: int) -> memoryview:
        if count > self._region.nbytes:
            control.violated("range", f"{count} bytes of a buffer of {self._region.nbytes} bytes")
        if self._region.dead:
            control.violated("dead-memory", f"contents() of a buffer of {self._region.nbytes} bytes that was released")
        return self._region.view(0, count)

    def as_tuple(self, count: int) -> tuple[bytes, ...]:
        return tuple(bytes([value]) for value in self.as_buffer(count))

    def __getitem__(self, index: int | slice) -> Any:
        view = self.as_buffer(self._region.nbytes)
        return bytes([view[index]]) if isinstance(index, int) else tuple(bytes([value]) for value in view[index])


class MTLResource(Labeled):
    """The common part of buffers."""

    __slots__ = ("_device", "_heap", "_options", "_purgeable", "_region")

    def device(self) -> Any:
        return self._device

    def heap(self) -> Any:
        return self._heap

    def resourceOptions(self) -> int:
        return self._options

    def storageMode(self) -> int:
        return storage_mode(self._options)

    def cpuCacheMode(self) -> int:
        return cache_mode(self._options)

    def hazardTrackingMode(self) -> int:
        return k.MTLHazardTrackingModeTracked if self._region.tracked else k.MTLHazardTrackingModeUntracked

    def setPurgeableState_(self, state: int) -> int:
        if self._heap is not None:
            return self._heap._purgeable
        before = self._purgeable
        if state != k.MTLPurgeableStateKeepCurrent:
            self._purgeable = unsigned(state, "state")
        if self._purgeable == k.MTLPurgeableStateEmpty:
            self._region.poison(0xDD)
        return before


class MTLBuffer(MTLResource):
    """A buffer on its own or of a heap."""

    __slots__ = ("_charged", "_deallocator")

    def __init__(self, device: Any, region: Region, options: int, heap: Any = None, charged: int = 0) -> None:
        super().__init__()
        self._device, self._region, self._options, self._heap = device, region, options, heap
        self._purgeable = k.MTLPurgeableStateNonVolatile
        self._charged = charged  # bytes of the device
        self._deallocator: Any = None

    def _die(self) -> None:
        region = self._region
        region.dead = True
        if self._heap is not None:
            self._heap._give_back(region)
        elif self._charged:
            self._device._release(self._charged)
        if self._deallocator is not None:
            self._deallocator(region.address, region.nbytes)

    def length(self) -> int:
        return self._region.nbytes

    def allocatedSize(self) -> int:
        return self._charged or self._region.nbytes

    def gpuAddress(self) -> int:
        return self._region.gpu_address

    def heapOffset(self) -> int:
        return self._region.offset if self._heap is not None else 0

    def contents(self) -> VarList:
        if storage_mode(self._options) == k.MTLStorageModePrivate:
            control.violated("contents", f"contents() of a private buffer of {self._region.nbytes} bytes")
        return VarList(self._region)

    def didModifyRange_(self, modified: Any) -> None:
        location, length = modified
        if storage_mode(self._options) != k.MTLStorageModeManaged:
            control.violated("synchronize", f"didModifyRange_ of a {_STORAGE[storage_mode(self._options)]} buffer")
        if location + length > self._region.nbytes:
            control.violated("range", f"range {location} + {length} of a buffer of {self._region.nbytes} bytes")

    def makeAliasable(self) -> None:
        if self._heap is None or self._heap._type != k.MTLHeapTypeAutomatic:
            control.violated("aliasable", "makeAliasable() of a buffer of no automatic heap")
        self._region.aliasable = True
        self._heap._give_back(self._region)

    def isAliasable(self) -> bool:
        return self._region.aliasable

    def _usable(self, offset: int, nbytes: int, what: str) -> None:
        """Check that the GPU may use a range."""
        if offset + nbytes > self._region.nbytes:
            control.violated("range", f"{what}: {nbytes} bytes at {offset} of a buffer of {self._region.nbytes} bytes")
        if self._region.aliasable and self._heap._type == k.MTLHeapTypeAutomatic:
            control.violated("used-aliasable", what)
        state = self._heap._purgeable if self._heap is not None else self._purgeable
        if state != k.MTLPurgeableStateNonVolatile:
            control.violated("purged", f"{what}: the purgeable state is {state}")


@properties(size=0, type=0, storageMode=k.MTLStorageModePrivate, cpuCacheMode=0, hazardTrackingMode=0)
class MTLHeapDescriptor(Descriptor):
    """The descriptor of a heap."""

    __slots__ = ()

    def setResourceOptions_(self, options: int) -> None:
        unsigned(options, "resourceOptions")
        self._values.update(
            storageMode=storage_mode(options),
            cpuCacheMode=cache_mode(options),
            hazardTrackingMode=tracking_mode(options),
        )

    def resourceOptions(self) -> int:
        values = self._values
        mode = values.get("storageMode", k.MTLStorageModePrivate)
        return values.get("cpuCacheMode", 0) | mode << 4 | values.get("hazardTrackingMode", 0) << 8


class MTLHeap(Labeled):
    """A heap: automatic ones find the place of a buffer themselves."""

    __slots__ = ("_cache", "_charged", "_device", "_kind", "_mode", "_nbytes", "_purgeable", "_regions", "_storage")
    __slots__ += ("_tracked", "_type")

    def __init__(self, device: Any, descriptor: MTLHeapDescriptor) -> None:
        super().__init__()
        values = descriptor._values
        self._device = device
        self._type = values.get("type", k.MTLHeapTypeAutomatic)
        self._mode = values.get("storageMode", k.MTLStorageModePrivate)
        self._cache = values.get("cpuCacheMode", 0)
        self._tracked = values.get("hazardTrackingMode", 0) == k.MTLHazardTrackingModeTracked
        self._nbytes = round_up(values["size"], device._gpu.page)
        self._charged = self._nbytes
        self._storage = Storage(self._nbytes)
        self._regions: list[Region] = []  # that buffers have and that are not aliasable, by offset
        self._purgeable = k.MTLPurgeableStateNonVolatile

    def _die(self) -> None:
        self._device._release(self._charged)

    def device(self) -> Any:
        return self._device

    def size(self) -> int:
        return self._nbytes

    def type(self) -> int:
        return self._type

    def storageMode(self) -> int:
        return self._mode

    def cpuCacheMode(self) -> int:
        return self._cache

    def hazardTrackingMode(self) -> int:
        return k.MTLHazardTrackingModeTracked if self._tracked else k.MTLHazardTrackingModeUntracked

    def resourceOptions(self) -> int:
        return self._options_of_buffers()

    def usedSize(self) -> int:
        with control.lock:
            return sum(self._taken(region) for region in self._regions)

    def currentAllocatedSize(self) -> int:
        return self._nbytes

    def maxAvailableSizeWithAlignment_(self, alignment: int) -> int:
        alignment = unsigned(alignment, "alignment")
        if alignment & (alignment - 1) or not alignment:
            control.violated("alignment", f"alignment is {alignment}")
        with control.lock:
            return max((end - round_up(start, alignment) for start, end in self._gaps()), default=0)

    def setPurgeableState_(self, state: int) -> int:
        before = self._purgeable
        if state != k.MTLPurgeableStateKeepCurrent:
            self._purgeable = unsigned(state, "state")
        return before

    def newBufferWithLength_options_(self, length: int, options: int) -> MTLBuffer | None:
        length, options = self._checked(length, options)
        if self._type != k.MTLHeapTypeAutomatic:
            control.violated("heap-type", "a placement heap needs newBufferWithLength_options_offset_")
        size, align = self._device._size_and_align(length)
        with control.lock:
            fits = (round_up(start, align) for start, end in self._gaps() if round_up(start, align) + size <= end)
            offset = next(fits, None)
            return None if offset is None else self._place(offset, length, options)

    def newBufferWithLength_options_offset_(self, length: int, options: int, offset: int) -> MTLBuffer:
        length, options = self._checked(length, options)
        offset = unsigned(offset, "offset")
        if self._type != k.MTLHeapTypePlacement:
            control.violated("heap-type", "an automatic heap takes no offsets")
        size, align = self._device._size_and_align(length)
        if offset % align or offset + size > self._nbytes:
            detail = f"{length} bytes at {offset}, alignment {align}, in a heap of {self._nbytes} bytes"
            control.violated("heap-offset", detail)
        with control.lock:
            return self._place(offset, length, options)

    def _options_of_buffers(self) -> int:
        tracking = k.MTLHazardTrackingModeTracked if self._tracked else k.MTLHazardTrackingModeUntracked
        return self._cache | self._mode << 4 | tracking << 8

    def _checked(self, length: int, options: int) -> tuple[int, int]:
        length, options = unsigned(length, "length"), unsigned(options, "options")
        if not length:
            control.violated("zero-size", "a buffer of 0 bytes in a heap")
        if length > self._device._gpu.max_buffer:
            control.violated("max-length", f"{length} bytes, but maxBufferLength is {self._device._gpu.max_buffer}")
        check_options(self._device, options)
        tracking, own = tracking_mode(options), self._options_of_buffers()
        if (options ^ own) & 0xFF or tracking not in {0, tracking_mode(own)}:
            control.violated("heap-mode", f"options {options:#x} in a heap with {own:#x}")
        return length, options

    def _place(self, offset: int, length: int, options: int) -> MTLBuffer:
        region = Region(self._storage, offset, length, tracked=self._tracked)
        self._regions.append(region)
        self._regions.sort(key=lambda each: each.offset)
        if self._type == k.MTLHeapTypeAutomatic:
            region.poison(0xA5)
        return MTLBuffer(self._device, region, options, self)

    def _taken(self, region: Region) -> int:
        return int(self._device._size_and_align(region.nbytes).size)

    def _gaps(self) -> list[tuple[int, int]]:
        gaps, start = [], 0
        for region in self._regions:
            if region.offset > start:
                gaps.append((start, region.offset))
            start = max(start, region.offset + self._taken(region))
        return [*gaps, (start, self._nbytes)] if start < self._nbytes else gaps

    def _give_back(self, region: Region) -> None:
        with control.lock:
            if region in self._regions:
                self._regions.remove(region)


def new_heap(device: Any, descriptor: MTLHeapDescriptor) -> MTLHeap | None:
    """Create a heap as its descriptor says, or return None if memory is out."""
    instance(descriptor, MTLHeapDescriptor, "descriptor")
    values = descriptor._values
    mode = values.get("storageMode", k.MTLStorageModePrivate)
    if not values.get("size"):
        control.violated("zero-size", "a heap of 0 bytes")
    allowed = (k.MTLStorageModePrivate, k.MTLStorageModeShared) if device._gpu.unified else (k.MTLStorageModePrivate,)
    if mode not in allowed:
        control.violated("heap-storage", f"storage mode {_STORAGE[mode]} on {device._gpu.name}")
    if values.get("type", 0) == k.MTLHeapTypeSparse:
        control.refuse("MTLHeapTypeSparse")
    if not device._reserve(round_up(values["size"], device._gpu.page)):
        return None
    return MTLHeap(device, descriptor)


def new_buffer(device: Any, length: int, options: int) -> MTLBuffer | None:
    """Create a buffer of its own, full of zeros, or return None if memory is out."""
    length, options = unsigned(length, "length"), unsigned(options, "options")
    if not length:
        control.violated("zero-size", "a buffer of 0 bytes")
    if length > device._gpu.max_buffer:
        control.violated("max-length", f"{length} bytes, but maxBufferLength is {device._gpu.max_buffer}")
    check_options(device, options)
    charged = round_up(length, device._gpu.page)
    if not device._reserve(charged):
        return None
    tracked = tracking_mode(options) != k.MTLHazardTrackingModeUntracked
    return MTLBuffer(device, Region(Storage(length), 0, length, tracked=tracked), options, charged=charged)


def new_buffer_without_copy(device: Any, memory: Any, length: int, options: int, deallocator: Any) -> MTLBuffer:
    """Create a buffer of memory that the program has."""
    length, options = unsigned(length, "length"), unsigned(options, "options")
    if check_options(device, options) == k.MTLStorageModePrivate:
        control.violated("no-copy", "memory of the program cannot be private")
    storage = BorrowedStorage(memoryview(memory).cast("B"))
    page = device._gpu.page
    if storage.address % page or length % page or not length or length > storage.nbytes:
        control.violated("no-copy", f"{length} bytes at {storage.address:#x}, with pages of {page} bytes")
    tracked = tracking_mode(options) != k.MTLHazardTrackingModeUntracked
    buffer = MTLBuffer(device, Region(storage, 0, length, tracked=tracked), options)
    buffer._deallocator = deallocator
    return buffer
