"""Memory that a simulated device has reserved before its program begins, as a recording shows it."""

from __future__ import annotations

from forebay._core import Block
from forebay.errors import Unsupported
from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.simulate.device import Device
from forebay.spi import Growable

__all__ = ["InitialMemory"]


class InitialMemory:
    """Segments, pages and blocks for a device that has not reserved memory.

    The device must have expandable segments switched on, so that blocks of any size can be placed; `apply_settings`
    switches them off afterwards. Raises Unsupported if it allocates in heaps.

    Parameters
    ----------
    device : Device
        The device.
    """

    def __init__(self, device: Device) -> None:
        allocator, port = device.allocator, device.allocator.port
        if not isinstance(allocator, SegmentAllocator) or not isinstance(port, Growable):
            raise Unsupported(f"{allocator.name} allocates in heaps", ability="Growable")
        self._allocator, self._port = allocator, port

    def reserve_segment(self, nbytes: int, queue: int, small: bool, pool_number: int) -> int:
        """Reserve a segment and return its address. Raises OutOfMemory, or ValueError for an impossible size."""
        address = self._port.reserve(nbytes)
        self._allocator.adopt(address, nbytes, queue, small, None, pool_number)
        return address

    def page_bytes(self, small: bool) -> int:
        """Return the bytes that expandable segments of a size class map at a time."""
        return self._allocator.page_bytes(small)

    def reserve_space(self, nbytes: int, page: int, queue: int, small: bool, pool_number: int) -> int:
        """Reserve the address space of an expandable segment, at least as large as the allocator would.

        Returns its address. Raises ValueError for impossible pages.
        """
        _, total = self._port.memory_info()
        size = max(nbytes, self._allocator.settings.expandable_reserve(total))
        return self._allocator.reserve_space(-(-size // page) * page, page, queue, small, pool_number)

    def commit(self, address: int, nbytes: int) -> bool:
        """Commit pages of an expandable segment. False if they are not whole pages that are uncommitted."""
        if not self._allocator.begin_commit(address, nbytes):
            return False
        self._port.commit(address, nbytes)
        self._allocator.commit_done(address, 0)
        return True

    def allocate_at(self, address: int, nbytes: int) -> Block | None:
        """Allocate a block in free memory at an address; None if it is not free."""
        return self._allocator.allocate_at(address, nbytes)
