"""The port of a simulated device."""

from __future__ import annotations

import os
from collections.abc import Mapping

from forebay._base.address_allocator import AddressAllocator
from forebay._base.byte_sizes import format_bytes
from forebay.backends.common.arguments import index_of, size_of
from forebay.errors import OutOfMemory
from forebay.simulate.clock import SimulatedQueue, World
from forebay.spi import DeviceProps, Heaps

__all__ = ["SimulatedPort"]

_STEP = 2 << 20
_FINE_STEP = 64 << 10
_BASE, _SIZE = 0x100000000000, 0x040000000000  # addresses of device 0, and the size of each device's range
_LARGE_BASE, _MAX_MEMORY = 1 << 58, 1 << 52  # the same for devices with more memory than `_SIZE`


class SimulatedPort:
    """Port that counts memory and allocates addresses, which no memory backs."""

    other_used: int
    total: int
    used: int

    def __init__(
        self, world: World, total_memory: int, other_used: int, index: int, fine_segments: bool, heaps: Heaps | None
    ) -> None:
        total, other_used = size_of(total_memory, "total_memory"), index_of(other_used, "other_used")
        if total > _MAX_MEMORY:
            raise ValueError(f"a simulated device has at most {format_bytes(_MAX_MEMORY)}, not {format_bytes(total)}")
        kind = "cuda" if heaps is None else "mps"
        self.props: DeviceProps = DeviceProps(
            kind, index, "simulated device", total, fine_segments=fine_segments, heaps=heaps
        )
        self._step = _FINE_STEP if fine_segments else _STEP
        self.total, self.other_used, self.used = total, other_used, 0
        self._world = world
        base, size = (_BASE, _SIZE) if total <= _SIZE else (_LARGE_BASE, _MAX_MEMORY)
        self._addresses = AddressAllocator(base + index * size, size)

    def reserve(self, nbytes: int) -> int:
        nbytes = -(-nbytes // self._step) * self._step
        self._charge(nbytes)
        return self._addresses.allocate(nbytes)

    def release(self, address: int) -> None:
        self.used -= self._addresses.free(address) or 0
        self._world.finish_all()  # cudaFree waits for the device

    def memory_info(self) -> tuple[int, int]:
        return max(self.total - self.used - self.other_used, 0), self.total

    def process_memory(self) -> Mapping[int, int]:
        return {os.getpid(): self.used + self.other_used}

    def reserve_space(self, nbytes: int, page: int) -> int:  # noqa: ARG002 -- there are no pages
        return self._world.expandable_addresses.allocate(nbytes)

    def release_space(self, address: int) -> None:
        self._world.expandable_addresses.free(address)

    def commit(self, address: int, nbytes: int) -> None:  # noqa: ARG002 -- as above
        self._charge(nbytes)

    def decommit(self, address: int, nbytes: int) -> None:  # noqa: ARG002 -- as above
        self.used -= nbytes

    def queue(self, priority: int = 0) -> SimulatedQueue:  # noqa: ARG002 -- priorities have no effect
        return SimulatedQueue(self._world, 0)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _charge(self, nbytes: int) -> None:
        """Count the bytes as used. Raises OutOfMemory if they are not free, or if `fail_next` demands it."""
        free, total = self.memory_info()
        if self._world.failures:
            self._world.failures -= 1
        elif nbytes <= free:
            self.used += nbytes
            return
        raise OutOfMemory(f"wanted {format_bytes(nbytes)}, {format_bytes(free)} free", wanted=nbytes, capacity=total)
