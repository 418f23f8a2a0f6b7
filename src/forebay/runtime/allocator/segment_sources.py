"""Upstream sources of an allocator's segments: its port, or the allocator of a private pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from forebay._base.byte_sizes import format_bytes
from forebay.errors import DeviceError, ForebayError, OutOfMemory

if TYPE_CHECKING:
    from forebay.runtime.allocator.request import AllocRequest
    from forebay.spi import Port

__all__ = ["MemoryResource", "SegmentSources", "reserve_from"]

_ALIGNMENT = 512  # blocks are split at multiples of it


class MemoryResource(Protocol):
    """A memory source other than the port, whose memory the device's queues can access."""

    def reserve(self, nbytes: int, device: int, queue: int) -> int: ...  # an address; 0 if out of memory
    def release(self, address: int, nbytes: int, device: int, queue: int) -> None: ...


class _Reservation(NamedTuple):
    source: MemoryResource
    nbytes: int
    queue: int


def reserve_from(source: MemoryResource, nbytes: int, device: int, queue: int, alignment: int) -> int:
    """Return the address of new memory. OutOfMemory if the source has none, ForebayError if it is misaligned."""
    address = source.reserve(nbytes, device, queue)
    if not address:
        raise OutOfMemory(f"{source} could not allocate {format_bytes(nbytes)}", wanted=nbytes, call="reserve")
    if address % alignment:
        source.release(address, nbytes, device, queue)
        raise ForebayError(f"{source} returned memory at {address:#x}, which is not a multiple of {alignment}")
    return address


class SegmentSources:
    """Segment sources of one allocator. Every segment is released to the source that reserved it."""

    def __init__(self, port: Port, source_of: Callable[[int], MemoryResource | None]) -> None:
        self._port = port
        self._source_of = source_of  # returns the source of a pool, or None for the port
        self._external: dict[int, _Reservation] = {}  # by address: segments that are not the port's

    def reserve(self, request: AllocRequest) -> int:
        source = self._source_of(request.pool_number)
        if source is None:
            return self._port.reserve(request.segment)
        device, nbytes = self._port.props.index, request.segment
        address = reserve_from(source, nbytes, device, request.queue, _ALIGNMENT)
        if any(address < at + other.nbytes and at < address + nbytes for at, other in tuple(self._external.items())):
            raise ForebayError(f"{source} returned memory at {address:#x} that is still in use")
        self._external[address] = _Reservation(source, nbytes, request.queue)
        return address

    def release_of(self, address: int) -> Callable[[int], object]:
        """Return the function that releases a segment, the port's own if possible: it can be one uninterrupted step."""
        return self.release if address in self._external else self._port.release

    def release(self, address: int) -> None:
        """Release a segment that is not the port's. After DeviceError the segment is still reserved."""
        external = self._external.pop(address)
        try:
            external.source.release(address, external.nbytes, self._port.props.index, external.queue)
        except DeviceError:
            self._external[address] = external
            raise
