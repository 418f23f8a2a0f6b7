"""Metal-style caching allocator: heaps that hold whole buffers. Recovery steps run in PyTorch's order for MPS.

A free buffer is cached with its size and may serve a smaller request. Once it is released, its range in the heap is
available for a new buffer. (PyTorch until about 2.13; later versions place buffers themselves.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from forebay._base.byte_sizes import MIB
from forebay._base.watermarks import Watermarks
from forebay._core import MAX_SMALL_BYTES, Block
from forebay.errors import ForebayError, WrongState
from forebay.runtime.allocator import oom_message
from forebay.runtime.allocator.caching_allocator import UNORDERED, Allocator, IterationOrders
from forebay.runtime.allocator.metrics import RESERVED_BYTES
from forebay.runtime.allocator.request import AllocRequest
from forebay.runtime.settings.allocator_settings import DEFAULT, UNLIMITED, AllocatorSettings
from forebay.spi import Heaps, Port, Queue, StorageModes

__all__ = ["HeapAllocator", "heap_size"]

_SCALAR = 8  # bytes; buffers up to this size are always shared if host and device share memory
_DEDICATED = 512 * MIB  # buffers of this size or more get a dedicated heap
# Largest buffer, and size of its heap.
_TIERS = ((MAX_SMALL_BYTES, 8 * MIB), (10 * MIB - 1, 32 * MIB), (_DEDICATED - 1, 1024 * MIB))
_DEDICATED_QUANTUM = 2 * MIB  # sizes of dedicated heaps are multiples of it
# Pool numbers: of the storage mode that is not the default, and of scalars.
_OTHER_MODE, _SCALARS = (1 << 31) + 1, (1 << 31) + 2


def heap_size(nbytes: int, *, memory_pressure: bool) -> int:
    """Return the size of the heap for a new buffer. Under memory pressure large buffers get dedicated heaps.

    >>> [heap_size(size << 20, memory_pressure=False) >> 20 for size in (1, 2, 10, 600)]
    [8, 32, 1024, 600]
    """
    if nbytes > _largest_in_common_heap(memory_pressure=memory_pressure):
        return -(-nbytes // _DEDICATED_QUANTUM) * _DEDICATED_QUANTUM
    return next(heap for largest, heap in _TIERS if nbytes <= largest)


def _largest_in_common_heap(*, memory_pressure: bool) -> int:
    """Return the size of the largest buffer that does not get a dedicated heap."""
    return _TIERS[1 if memory_pressure else 2][0]


class _Cached(NamedTuple):
    address: int
    nbytes: int
    queue: int
    age: int
    grows: bool
    freed_at: int


class HeapAllocator(Allocator):
    """An allocator with the policy of `torch.mps`. The settings of `torch.cuda` have no effect.

    Buffers and heaps are reused by their own queue only. (PyTorch's allocator of that time had one queue.)
    """

    limit: int | None

    def __init__(
        self,
        name: str,
        port: Port,
        heaps: Heaps,
        queues: Mapping[int, Queue],
        settings: AllocatorSettings = DEFAULT,
        orders: IterationOrders = UNORDERED,
        watermarks: Watermarks | None = None,  # by default from the environment
    ) -> None:
        super().__init__(name, port, queues, settings, orders)
        self._heaps = heaps
        self._default_mode = "shared" if heaps.unified else "private"
        self._watermarks = watermarks or Watermarks.from_environment(heaps)
        self._used_by_others = 0  # bytes of the device's memory, at the latest `update_other_usage`
        self._dedicated: set[int] = set()  # heaps reserved for one large buffer
        self.create_pool(_OTHER_MODE)
        self.create_pool(_SCALARS, waits=True)
        for pool_number in (_OTHER_MODE, _SCALARS):
            self.private.add_common(pool_number)
        self._push_policy()

    # Policy

    def apply_settings(self, settings: AllocatorSettings) -> None:
        """Store CUDA's settings without effect. Does not use the port, which may be closed."""
        self.settings = settings

    @property
    def watermarks(self) -> Watermarks:
        """The high and low watermark, as fractions of the recommended memory."""
        return self._watermarks

    def set_memory_fraction(self, fraction: float) -> None:
        """Set the high watermark: a fraction of the recommended memory, 0 to 2; 0 means no limit."""
        self.set_watermarks(self._watermarks.with_high(fraction))

    def set_watermarks(self, watermarks: Watermarks) -> None:
        """Replace both watermarks. Existing allocations are not affected."""
        self._watermarks = watermarks
        self.update_other_usage()

    def snapshot_notes(self) -> dict[str, Any]:
        return {"heaps": asdict(self._heaps), "watermarks": str(self._watermarks)}

    def memory_fraction(self) -> float:
        return self._watermarks.high

    def capacity_changed(self) -> None:
        """Do nothing: the recommended memory does not depend on the capacity."""

    def update_other_usage(self) -> None:
        """Query the memory used outside this allocator and lower the native pool's limit by it."""
        self._used_by_others = max(self.driver_allocated() - self.current(RESERVED_BYTES), 0)
        self._push_policy()

    def _push_policy(self) -> None:
        self.limit = self._watermarks.high_limit
        allowed = 0 if self.limit is None else max(self.limit - self._used_by_others, 1)
        track_ages, buffer_alignment = self._watermarks.low > 0, self._heaps.alignment
        self.set_policy((0,) * 16, UNLIMITED, 0, 0, False, track_ages, False, buffer_alignment, allowed)

    # Choice of the buffer pool

    def allocate_for(self, nbytes: int, queue: int = 0, usage: str = "") -> Block:
        """Allocate memory that is "shared" with the host, "private" to the device, or holds a "scalar".

        A scalar's free is deferred until its own queue is done. Private pools (of graphs and MemPools) have memory of
        the default mode only. ValueError for another usage, and for a scalar of more than 1 MiB.
        """
        if nbytes >= self._heaps.longest:  # may exceed the native core's integers
            raise self.too_large_error(nbytes)
        pool_number = self._pool_number_for(nbytes, usage or self._default_mode)
        if self.routed and (private := self._route(queue)):
            pool_number = private  # allocations of a graph or MemPool use its pool, whatever their usage
        if self.has_pending_frees:
            self._process_pending_frees(queue)
        block = self.try_allocate(nbytes, queue, pool_number)
        return self._refill(nbytes, queue, pool_number) if block is None else block

    def _pool_number_for(self, nbytes: int, usage: str) -> int:
        if usage == "scalar":
            if nbytes > MAX_SMALL_BYTES:
                raise ValueError(f"a scalar has at most {MAX_SMALL_BYTES} bytes, not {nbytes}")
            return _SCALARS
        if usage not in ("shared", "private"):
            raise ValueError(f"usage must be 'shared', 'private' or 'scalar', not {usage!r}")
        # With unified memory the default mode is shared, and small buffers are shared even if private is requested.
        return 0 if usage == self._default_mode or (nbytes <= _SCALAR and self._heaps.unified) else _OTHER_MODE

    def _storage_mode(self, pool_number: int) -> str:
        if pool_number == _OTHER_MODE:
            return "private" if self._heaps.unified else "shared"
        return "shared" if pool_number == _SCALARS else self._default_mode

    def port_reserve(self, pool_number: int) -> Callable[[int], int]:
        port = self.port
        if not isinstance(port, StorageModes):
            return port.reserve
        return port.reserve_shared if self._storage_mode(pool_number) == "shared" else port.reserve_private

    def too_large_error(self, nbytes: int) -> ForebayError:
        return oom_message.invalid_buffer_size_error(nbytes)

    # Recovery steps

    def _refill(self, nbytes: int, queue: int, pool_number: int) -> Block:
        if nbytes >= self._heaps.longest:
            raise self.too_large_error(nbytes)
        size = self.block_size(nbytes)
        self._device_error = None
        self.update_other_usage()
        request = AllocRequest(
            nbytes, size, size, size <= MAX_SMALL_BYTES, queue, pool_number, self.caller_stack(frees=False)
        )
        request.memory_pressure = not request.small and self._has_memory_pressure()
        steps = (
            self._use_or_release_oversize,
            self._collect_garbage_and_place,
            self._retry_after_callbacks,
            self._release_some_and_place,
            self._empty_and_place,
        )
        for step in steps:
            if (block := step(request)) is not None:
                return block
        raise self._oom_error(request)

    def _has_memory_pressure(self) -> bool:
        low = self._watermarks.low_limit
        return low is not None and low - self.driver_allocated() < MIB

    def _retry_after_callbacks(self, request: AllocRequest) -> Block | None:
        self._callbacks_freed()
        return self._retry_cached(request)  # whatever the callbacks return, as PyTorch does

    def _retry_cached(self, request: AllocRequest) -> Block | None:
        return super()._retry_cached(request) or self._use_or_release_oversize(request)

    def _use_or_release_oversize(self, request: AllocRequest) -> Block | None:
        """If the only fitting buffer is far too large: use it while its queue is busy, release it otherwise."""
        address, size, has_room = self.best_fit_buffer(request.nbytes, request.queue, request.pool_number)
        if not size or has_room or self._exceeds_limit(request):
            return None
        idle = self._idle(request.queue)
        if not idle and not request.memory_pressure:
            return self.allocate_at(address, request.nbytes, request.queue, request.pool_number)
        self.release_buffer(address, size)
        request.memory_pressure = request.memory_pressure and not idle
        return None

    def _collect_garbage_and_place(self, request: AllocRequest) -> Block | None:
        if request.memory_pressure:
            cached = self._cached(request)
            if sum(each.nbytes for each in cached) > request.size:
                self._collect_garbage(cached, request.stack)
        return self._place(request)

    def _collect_garbage(self, cached: list[_Cached], stack: int) -> None:
        """Release idle buffers older than the average, repeatedly, until the memory pressure ends."""
        low = self._watermarks.low_limit
        surplus = 0 if low is None else self.driver_allocated() - low
        idle = [each for each in cached if self._idle(each.queue)]
        while idle and surplus > 0:
            average = sum(each.age for each in idle) / len(idle)
            old = list(_up_to(surplus, [each for each in idle if each.age >= average]))
            self._release_buffers(old, stack, self._dedicated)
            surplus -= sum(each.nbytes for each in old)
            idle = [each for each in idle if each.age < average]

    def _release_some_and_place(self, request: AllocRequest) -> Block | None:
        """Release the smallest cached buffer that fits, or else as many of the largest as needed; then place."""
        cached = [each for each in self._cached(request) if each.queue == request.queue]
        chosen = [each for each in cached if each.nbytes >= request.size][:1]
        if not chosen:
            chosen = list(_up_to(request.size, cached[::-1]))
        self._release_buffers(chosen, request.stack)
        return self._place(request) if sum(each.nbytes for each in chosen) >= request.size else None

    def _empty_and_place(self, request: AllocRequest) -> Block | None:
        if request.queue in self.capturing:
            return None
        self.empty(request.stack)
        self.num_alloc_retries += 1
        return self._place(request)

    def _place(self, request: AllocRequest) -> Block | None:
        """Allocate a new buffer in a heap that has room, or in a new heap."""
        if self._exceeds_limit(request):
            return None
        block = self.new_buffer(request.nbytes, request.queue, request.pool_number)
        if block is None:
            heap = heap_size(request.size, memory_pressure=request.memory_pressure)
            block = self._reserve(replace(request, segment=heap))
            if block is not None:
                dedicated = request.size > _largest_in_common_heap(memory_pressure=request.memory_pressure)
                (self._dedicated.add if dedicated else self._dedicated.discard)(block.address)
        if block is not None and 0 < request.pool_number < _OTHER_MODE:
            self.private.ever_used.add(request.pool_number)
        return block

    def _exceeds_limit(self, request: AllocRequest) -> bool:
        return self.limit is not None and self.driver_allocated() + request.size > self.limit

    def _oom_text(self, request: AllocRequest, free: int, capacity: int) -> str:
        other = max(capacity - free - self.current(RESERVED_BYTES), 0)
        return oom_message.heap_text(self, request, other, self._storage_mode(request.pool_number))

    # Releasing cached memory

    def _cached(self, request: AllocRequest) -> list[_Cached]:
        """Return the free buffers of the request's pool, of all queues, sorted by queue and size."""
        return [_Cached(*row) for row in self.evictable(request.small, request.pool_number, parts=True)]

    def _release_buffers(self, buffers: list[_Cached], stack: int, heaps: set[int] | None = None) -> None:
        """Release the buffers, and each heap that becomes empty (only those in `heaps`, if given) unless it is in use.

        A heap is in use while its queue is busy.
        """
        emptied: dict[int, int] = {}  # heap address -> queue
        for each in buffers:
            heap = self.release_buffer(each.address, each.nbytes)
            if heap and self._idle(each.queue) and (heaps is None or heap in heaps):
                emptied[heap] = each.queue
        self.pending_releases.add(sorted(emptied), stack)
        # A heap that another thread used before the eviction may be busy: a later `_release_segments` releases it.
        idle = {heap for heap, queue in emptied.items() if self._idle(queue)}
        self.pending_releases.release(tuple(entry for entry in self.pending_releases.entries() if entry[0] in idle))
        self._forget_released_heaps()

    def _forget_released_heaps(self) -> None:
        """Drop released heaps from `_dedicated`: a new heap may reuse their address."""
        self._dedicated.difference_update([heap for heap in tuple(self._dedicated) if not self.owns(heap)])

    def _idle(self, handle: int) -> bool:
        """Return True if the queue has no work left. An unknown or closed queue has none."""
        queue = self._queues.get(handle)
        return handle not in self.capturing and (queue is None or queue.idle())

    def empty(self, stack: int | None = None) -> None:
        """Release all cached memory after waiting for all work, even if nothing is cached, as PyTorch does."""
        if stack is None:
            stack = self.caller_stack(frees=True)
        with suppress(WrongState):  # this is a queue's own thread, which cannot wait for itself
            self.synchronize()
        super().empty(stack)
        for pool_number in (_OTHER_MODE, _SCALARS):
            self._empty_pool(pool_number, stack, large_first=True)

    def _empty_pool(self, pool_number: int, stack: int, *, large_first: bool) -> None:
        for small in (False, True) if large_first else (True, False):
            for address, nbytes, *_ in self.evictable(small, pool_number, parts=True):
                self.release_buffer(address, nbytes)
            self._release_segments([address for address, *_ in self.evictable(small, pool_number)], stack)
        self._forget_released_heaps()


def _up_to(wanted: int, cached: list[_Cached]) -> Iterator[_Cached]:
    """Yield buffers until they add up to the wanted bytes."""
    for each in cached:
        if wanted <= 0:
            return
        wanted -= each.nbytes
        yield each
