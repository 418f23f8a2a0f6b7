"""Where an allocator's segments come from and go back to: its port, or what a private pool brought along."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from forebay.byte_sizes import format_bytes
from forebay.errors import DeviceError, ForebayError, OutOfMemory

if TYPE_CHECKING:
    from forebay.runtime.allocator.caching_allocator import Allocator
    from forebay.runtime.allocator.expandable_segments import Request

__all__ = ["Source", "Sources", "taken_from"]

_ALIGNED = 512  # blocks are cut at multiples of it


class Source(Protocol):
    """Something else than the port that has memory which the device's queues can work on."""

    def reserve(self, nbytes: int, device: int, queue: int) -> int: ...  # an address; 0: there is no more
    def release(self, address: int, nbytes: int, device: int, queue: int) -> None: ...


class _Lent(NamedTuple):
    source: Source
    nbytes: int
    queue: int


def taken_from(source: Source, nbytes: int, device: int, queue: int, aligned: int) -> int:
    """The address of memory that the source gave. OutOfMemory for none, ForebayError for what cannot be used."""
    address = source.reserve(nbytes, device, queue)
    if not address:
        raise OutOfMemory(f"{source} has no {format_bytes(nbytes)}", wanted=nbytes, call="reserve")
    if address % aligned:
        source.release(address, nbytes, device, queue)
        raise ForebayError(f"{source} gave memory at {address:#x}, which is no multiple of {aligned}")
    return address


class Sources:
    """Of one allocator. Every segment goes back to where it came from, whoever owns its pool by then."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._lent: dict[int, _Lent] = {}  # by address: what is not the port's

    def reserve(self, request: Request) -> int:
        allocator = self._allocator
        source = allocator.private.source_of(request.home)
        if source is None:
            return allocator.port.reserve(request.segment)
        device, nbytes = allocator.port.props.index, request.segment
        address = taken_from(source, nbytes, device, request.queue, _ALIGNED)
        if any(address < at + lent.nbytes and at < address + nbytes for at, lent in tuple(self._lent.items())):
            raise ForebayError(f"{source} gave memory at {address:#x} that it had given before")
        self._lent[address] = _Lent(source, nbytes, request.queue)
        return address

    def release(self, address: int) -> None:
        """Raises DeviceError where the port refuses, and then has it still."""
        allocator = self._allocator
        lent = self._lent.pop(address, None)
        if lent is None:
            allocator.port.release(address)
            return
        try:
            lent.source.release(address, lent.nbytes, allocator.port.props.index, lent.queue)
        except DeviceError:
            self._lent[address] = lent
            raise
