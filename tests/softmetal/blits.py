"""Copies and fills."""

from __future__ import annotations

import ctypes
from typing import Any

from . import constants as k
from .control import control
from .counters import resolve
from .encoders import MTLCommandEncoder
from .indirect import MTLIndirectCommandBuffer
from .objects import instance, unsigned
from .resources import storage_mode


class MTLBlitCommandEncoder(MTLCommandEncoder):
    """An encoder of copies and fills."""

    __slots__ = ()
    _kind = "blit"

    def copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
        self, source: Any, source_offset: int, destination: Any, destination_offset: int, size: int
    ) -> None:
        source = self._buffer_argument(source, "sourceBuffer")
        destination = self._buffer_argument(destination, "destinationBuffer")
        start, to = unsigned(source_offset, "sourceOffset"), unsigned(destination_offset, "destinationOffset")
        size = unsigned(size, "size")
        detail = f"copy of {size} bytes from {start} to {to}"
        if not size:
            control.violated("range", detail)
        if start % 4 or to % 4 or size % 4:
            control.violated("multiple-of-4", detail)
        source._usable(start, size, detail)
        destination._usable(to, size, detail)
        if source._region.storage is destination._region.storage:
            first, second = source._region.offset + start, destination._region.offset + to
            if abs(first - second) < size:
                control.violated("overlap", detail)
        reads, writes = source._region, destination._region

        def copy(current: Any) -> None:
            origin = current.use(reads, detail, start, size, write=False)
            ctypes.memmove(current.use(writes, detail, to, size, write=True), origin, size)

        self._add(copy)

    def fillBuffer_range_value_(self, buffer: Any, extent: Any, value: int) -> None:
        buffer = self._buffer_argument(buffer, "buffer")
        location, length = (unsigned(each, "range") for each in extent)
        detail = f"fill of {length} bytes at {location}"
        if not length:
            control.violated("range", detail)
        if location % 4 or length % 4:
            control.violated("multiple-of-4", detail)
        buffer._usable(location, length, detail)
        if not -128 <= value <= 127:  # PyObjC's metadata has "z", a char
            raise ValueError(f"depythonifying 'char', got '{type(value).__name__}' of wrong magnitude")
        if value < 0:
            control.violated("fill-value", f"fill with {value}")
        region = buffer._region

        def fill(current: Any) -> None:
            ctypes.memset(current.use(region, detail, location, length, write=True), value, length)

        self._add(fill)

    def resolveCounters_inRange_destinationBuffer_destinationOffset_(
        self, samples: Any, extent: Any, destination: Any, offset: int
    ) -> None:
        destination = self._buffer_argument(destination, "destinationBuffer")
        self._add(resolve(self, samples, extent, destination, offset))

    def sampleCountersInBuffer_atSampleIndex_withBarrier_(self, samples: Any, index: int, barrier: bool) -> None:
        control.violated("counter-point", "samples between the commands of a blit encoder")

    def optimizeIndirectCommandBuffer_withRange_(self, commands: Any, extent: Any) -> None:
        self._uses(instance(commands, MTLIndirectCommandBuffer, "indirectCommandBuffer"))._range(extent)
        self._add(lambda current: None)

    def resetCommandsInBuffer_withRange_(self, commands: Any, extent: Any) -> None:
        self._uses(instance(commands, MTLIndirectCommandBuffer, "buffer"))._range(extent)
        self._add(lambda current: MTLIndirectCommandBuffer.resetWithRange_.__wrapped__(commands, extent))

    def synchronizeResource_(self, resource: Any) -> None:
        resource = self._buffer_argument(resource, "resource")
        if storage_mode(resource._options) != k.MTLStorageModeManaged:
            control.violated("synchronize", "synchronizeResource_ of a buffer that is not managed")
        region = resource._region
        self._add(lambda current: current.use(region, "synchronizeResource_", write=False))
