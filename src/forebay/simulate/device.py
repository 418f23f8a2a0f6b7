"""One device over simulated memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from forebay._core import Block
from forebay.address_allocator import Addresses
from forebay.backends.common.arguments import index_of, size_of
from forebay.byte_sizes import format_bytes
from forebay.errors import ForebayError, OutOfMemory, WrongState
from forebay.runtime.allocator import statistics
from forebay.runtime.allocator.caching_allocator import Allocator, Observer
from forebay.runtime.allocator.heap_allocator import HeapAllocator
from forebay.runtime.allocator.private_pools import PoolId
from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.runtime.allocator.torch_iteration_order import of_pools, of_streams
from forebay.runtime.history import recording, torch_schema
from forebay.runtime.settings import allocator_settings as rules
from forebay.simulate.clock import SimulatedQueue, Streams, World
from forebay.spi import DeviceProps, Heaps
from forebay.watermarks import Watermarks

__all__ = ["Device", "World"]

_STEP = 2 << 20
_FINE_STEP = 64 << 10
_MEMORY, _ROOM = 0x100000000000, 0x040000000000  # the first device's addresses, and how many each device has
_FAR, _LARGEST = 1 << 58, 1 << 52  # the same for devices with more memory than that


class Device(Streams):
    """One simulated device of `total_memory` bytes, of which others use `other_used`.

    `settings` are PyTorch's (PYTORCH_CUDA_ALLOC_CONF); a bad one raises ValueError with PyTorch's words. Not safe for
    use by several threads at once. With `fine_segments` it takes memory as the host device does, not as a GPU; with
    `heaps` as an MPS device, whose settings are "high_watermark_ratio:1.7,low_watermark_ratio:1.4".

    >>> gpu = Device(80 << 30, "expandable_segments:True")
    >>> address = gpu.allocate(3 << 30)
    >>> gpu.stats()["reserved_bytes.all.current"] >> 20
    3080
    >>> gpu.free(address)
    """

    def __init__(
        self,
        total_memory: int,
        settings: str = "",
        other_used: int = 0,
        *,
        index: int = 0,
        world: World | None = None,
        fine_segments: bool = False,
        heaps: Heaps | None = None,
    ) -> None:
        self.index = index
        super().__init__(world or World())
        self._port = _Port(self._world, total_memory, other_used, index, fine_segments, heaps)
        self._allocator = self._made(settings, heaps)
        self._allocate = self._allocator.allocate
        self._live: dict[int, Block] = {}
        self._capture: tuple[int, PoolId, dict[int, int]] | None = None

    def _made(self, settings: str, heaps: Heaps | None) -> Allocator:
        index, orders = self.index, (lambda: of_streams(self.index), of_pools)
        if heaps is None:
            return SegmentAllocator(f"cuda:{index}", self._port, self._queues, rules.at_start(settings), orders)
        marks = Watermarks.of_text(heaps, settings)
        return HeapAllocator(f"mps:{index}", self._port, heaps, self._queues, orders=orders, watermarks=marks)

    def allocate(self, nbytes: int, stream: int = 0) -> int:
        """The address of a new block; 0 for 0 bytes. Raises OutOfMemory, or ValueError for a negative size."""
        if nbytes == 0:
            return 0
        try:
            block = self._allocate(nbytes, stream)
        except ValueError:
            if nbytes < 0:  # PyTorch's words
                text = f"Invalid memory size: {nbytes}. caching_allocator_alloc requires a non-negative size."
                raise ValueError(text) from None
            raise
        except OverflowError:
            if nbytes < 0 or stream < 0 or stream >= 1 << 64:
                raise
            raise self.allocator.beyond(nbytes) from None  # more than the core's numbers hold
        address = block.address
        self._live[address] = block
        return address

    def free(self, address: int) -> None:
        """Free the block that begins at this address; 0 is ignored."""
        if address:
            try:
                del self._live[address]
            except KeyError:
                raise _no_block(address) from None

    def record_stream(self, address: int, stream: int) -> None:
        """The block is used on that stream too: once freed, it waits for what is queued there."""
        if address:
            self._queue(stream)
            self._block(address).used_on(stream)

    def empty_cache(self) -> None:
        """Give back to the device all memory of which nothing is in use."""
        self._allocator.empty()

    def set_memory_fraction(self, fraction: float) -> None:
        """Reserve at most this share of the memory (0 to 1; 1: no limit); of heaps of the recommended (0 to 2; 0)."""
        self._allocator.set_memory_fraction(fraction)

    def apply_settings(self, settings: str) -> None:
        """New settings from now on, as `torch.cuda.memory._set_allocator_settings`."""
        if self._port.props.heaps is not None and isinstance(self._allocator, HeapAllocator):
            self._allocator.set_watermarks(Watermarks.of_text(self._port.props.heaps, settings))
            return
        rules.change(settings, self._allocator.settings, self._allocator.apply_settings)

    def reset_peak_stats(self) -> None:
        self._allocator.reset_peaks()

    def reset_accumulated_stats(self) -> None:
        self._allocator.reset_accumulated()

    # The world outside

    def fail_next(self, n: int) -> None:
        """The next `n` requests to the device fail, whatever is free."""
        self._world.failures = index_of(n, "n")

    def set_other_used(self, nbytes: int) -> None:
        """Bytes of the device that others use."""
        self._port.other_used = index_of(nbytes, "nbytes")

    def memory_info(self) -> tuple[int, int]:
        """Bytes free on the device, bytes in all."""
        return self._port.memory_info()

    @property
    def device_used(self) -> int:
        """Bytes that the device has handed out."""
        return self._port.used

    # Private pools

    def new_pool(self, *, use_on_oom: bool = False, no_split: bool = False) -> PoolId:
        """A pool of its own, as torch.cuda.MemPool: what it has goes to nobody else, unless `use_on_oom`."""
        pool = (0, next(self._world.pools))
        self._allocator.private.make(pool, use_on_oom=use_on_oom, no_split=no_split)
        return pool

    def use_pool(self, pool: PoolId) -> AbstractContextManager[None]:
        """This thread allocates there meanwhile, as torch.cuda.use_mem_pool. Nests."""
        found = self._allocator.private[pool]
        if found.users == 0:
            raise ForebayError(f"memory pool {pool} was released")
        return self._allocator.private.use(pool)

    def release_pool(self, pool: PoolId) -> None:
        """The end of a MemPool: its idle memory goes back to the device."""
        self._allocator.release_pool(pool)

    def begin_capture(self, stream: int, pool: PoolId | None = None) -> PoolId:
        """A graph of that stream's work begins: what it allocates comes from `pool`, or from a new one, (n, 0)."""
        stream = index_of(stream, "stream")
        if self._capture is not None:
            raise WrongState(f"stream {self._capture[0]} is being captured: end that first")
        pool = pool or (next(self._world.graphs), 0)
        queues = {stream: 0}
        self._allocator.begin_capture(pool, queues)
        self._capture = stream, pool, queues
        return pool

    def end_capture(self) -> None:
        if self._capture is None:
            raise WrongState("no capture is under way")
        (_, pool, queues), self._capture = self._capture, None
        self._allocator.end_capture(pool, queues)

    def release_capture(self, pool: PoolId) -> None:
        """The end of a graph: its idle memory may go, and does when the cache is emptied."""
        self._allocator.private.leave(pool)

    # What it tells

    def add_out_of_memory_observer(self, observer: Observer) -> None:
        """Called before OutOfMemory is raised: device index, bytes asked of it, bytes it may have, bytes free."""
        self._allocator.observers.append(observer)

    def record_history(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = recording.UNLIMITED,
        **options: Any,
    ) -> None:
        """As torch.cuda.memory._record_memory_history: its arguments, its meaning (see `forebay.memory`)."""
        recording.start(self._allocator, enabled, context, stacks, max_entries, **options)

    def stats(self) -> dict[str, int]:
        """All that is counted, under the keys of torch.cuda.memory_stats."""
        return statistics.flat(self._allocator)

    def current(self, metric: str) -> int:
        """One number of `stats`, much cheaper: `current("reserved_bytes")`."""
        return self._allocator.current(statistics.METRIC[metric])

    def peak(self, metric: str) -> int:
        """The highest that number was."""
        return self._allocator.peak(statistics.METRIC[metric])

    def snapshot(self) -> dict[str, Any]:
        """Segments, blocks and history in the schema of torch.cuda.memory._snapshot."""
        return torch_schema.of_allocators([self._allocator])

    @property
    def allocator(self) -> Allocator:
        """The allocator itself, whose blocks are objects: quicker than addresses, where a million follow each other."""
        return self._allocator

    def broken(self) -> str | None:
        """The first rule of the allocator's own tables that does not hold; None when all do."""
        return self._allocator.broken()

    def _block(self, address: int) -> Block:
        try:
            return self._live[address]
        except KeyError:
            raise _no_block(address) from None


class _Port:
    """The device under it."""

    def __init__(self, world: World, total: int, other_used: int, index: int, fine: bool, heaps: Heaps | None) -> None:
        total, other_used = size_of(total, "total_memory"), index_of(other_used, "other_used")
        if total > _LARGEST:
            raise ValueError(f"a simulated device has at most {format_bytes(_LARGEST)}, not {format_bytes(total)}")
        kind = "cuda" if heaps is None else "mps"
        self.props = DeviceProps(kind, index, "simulated device", total, fine_segments=fine, heaps=heaps)
        self._step = _FINE_STEP if fine else _STEP
        self.total, self.other_used, self.used = total, other_used, 0
        self._world = world
        base, room = (_MEMORY, _ROOM) if total <= _ROOM else (_FAR, _LARGEST)
        self._memory = Addresses(base + index * room, room)

    def reserve(self, nbytes: int) -> int:
        nbytes = -(-nbytes // self._step) * self._step
        self._take(nbytes)
        return self._memory.take(nbytes)

    def release(self, address: int) -> None:
        self.used -= self._memory.give(address) or 0
        self._world.finish_all()  # cudaFree waits for the device

    def memory_info(self) -> tuple[int, int]:
        return max(self.total - self.used - self.other_used, 0), self.total

    def occupants(self) -> Mapping[int, int]:
        return {os.getpid(): self.used + self.other_used}

    def reserve_space(self, nbytes: int, page: int) -> int:  # noqa: ARG002 -- it counts, and keeps no pages
        return self._world.spaces.take(nbytes)

    def release_space(self, address: int) -> None:
        self._world.spaces.give(address)

    def commit(self, address: int, nbytes: int) -> None:  # noqa: ARG002 -- as above
        self._take(nbytes)

    def decommit(self, address: int, nbytes: int) -> None:  # noqa: ARG002 -- as above
        self.used -= nbytes

    def queue(self, priority: int = 0) -> SimulatedQueue:  # noqa: ARG002 -- all are equal
        return SimulatedQueue(self._world, 0)

    def close(self) -> None:
        """Nothing is open."""

    def _take(self, nbytes: int) -> None:
        free, total = self.memory_info()
        if self._world.failures:
            self._world.failures -= 1
        elif nbytes <= free:
            self.used += nbytes
            return
        raise OutOfMemory(f"wanted {format_bytes(nbytes)}, {format_bytes(free)} free", wanted=nbytes, capacity=total)


def _no_block(address: int) -> ForebayError:
    return ForebayError(f"invalid device pointer: {index_of(address, 'address'):#x}")
