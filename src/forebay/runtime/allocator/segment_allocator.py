"""CUDA-style caching allocator: segments that are split into blocks.

# Note [Recovery steps]
If no free block fits, these steps run in PyTorch's order, each once; statistics, addresses and errors show another:

1. Call all free-memory callbacks, then search again.
2. If a limit and `garbage_collection_threshold` are set: release the segments that have been idle longest, until enough
   memory is released.
3. Reserve a segment from the device, or commit pages of an expandable segment, unless this would exceed the limit.
4. Search the private pools whose memory other requests may use (`use_on_oom`), unless the request is itself for a
   private pool.
5. If `max_split_size_mb` is set: release the smallest idle oversize block that would fit, or else the largest ones
   until enough is released; then reserve again.
6. Wait for all pending frees, release all cached memory, then reserve again.
7. On devices where reserving is cheap: search once more.
8. Raise `OutOfMemory`, with an explanation.

Before the first step, pending frees whose streams have finished are completed. A queue that is being captured into a
graph is not queried, so its requests skip this and step 6. Rejected: the steps in C++. They call drivers and Python, so
they would hold a lock across these calls or be just as complicated.
Test: tests/golden/test_golden.py::test_allocator_reproduces_the_trace
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay._core import MAX_REQUEST_BYTES, Block
from forebay.errors import Unsupported, ended_error
from forebay.runtime.allocator import garbage_collection, oom_message
from forebay.runtime.allocator.caching_allocator import UNORDERED, Allocator, IterationOrders
from forebay.runtime.allocator.expandable_segments import ExpandableSegments
from forebay.runtime.allocator.idle_memory import IdleMemory
from forebay.runtime.allocator.metrics import RESERVED_BYTES
from forebay.runtime.allocator.request import AllocRequest
from forebay.runtime.settings.allocator_settings import DEFAULT, UNLIMITED, AllocatorSettings
from forebay.spi import Growable, Port, Queue

__all__ = ["SegmentAllocator"]

_SMALL_PAGE = 2 << 20  # bytes; of expandable segments of the small pool
_MAX_RETRIES = 3  # of emptying the cache for one request, as other threads may fill it again


class SegmentAllocator(Allocator):
    """An allocator with the policy and settings of `torch.cuda`."""

    limit: int | None

    def __init__(
        self,
        name: str,
        port: Port,
        queues: Mapping[int, Queue],
        settings: AllocatorSettings = DEFAULT,
        orders: IterationOrders = UNORDERED,
    ) -> None:
        self._expandable: ExpandableSegments | None = None
        super().__init__(name, port, queues, settings, orders)
        if isinstance(port, Growable):
            self._expandable = ExpandableSegments(self, port)
        self._fraction = 1.0  # of the device's memory: the limit
        if port.props.fine_segments:
            self.idle = IdleMemory(self, self._release_segments, self._has_work)
        if settings.per_process_memory_fraction < 1:
            self.set_memory_fraction(settings.per_process_memory_fraction)
        self._push_policy()

    # Statistics

    @property
    def num_device_alloc(self) -> int:
        return super().num_device_alloc + (self._expandable.num_committed if self._expandable is not None else 0)

    @property
    def num_device_free(self) -> int:
        return super().num_device_free + (self._expandable.num_decommitted if self._expandable is not None else 0)

    def reset_accumulated(self) -> None:
        super().reset_accumulated()
        if self._expandable is not None:
            self._expandable.num_committed = self._expandable.num_decommitted = 0

    # Policy

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit reserved memory to a fraction of the device's; 1 means no limit, as in PyTorch since 2.9."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        _, total = self.port.memory_info()
        self.limit = int(fraction * total + 0.5) if fraction < 1 else None
        self._fraction = fraction
        self._push_policy()

    def memory_fraction(self) -> float:
        return 1.0 if self.limit is None else self.limit / self.port.memory_info()[1]

    def capacity_changed(self) -> None:
        self.set_memory_fraction(self._fraction)

    def _push_policy(self) -> None:
        settings = self.settings
        self.set_policy(
            settings.roundup_power2_divisions,
            settings.max_split_size,
            settings.max_non_split_rounding,
            settings.large_segment_size,
            self.uses_expandable_segments,
            self.idle is not None or (self.limit is not None and settings.garbage_collection_threshold > 0),
            self.port.props.fine_segments,
        )

    def snapshot_notes(self) -> dict[str, Any]:
        fine = self.port.props.fine_segments
        return {"allocator_settings": self.settings.as_snapshot(), "fine_segments": fine}

    @property
    def uses_expandable_segments(self) -> bool:
        return self.settings.expandable_segments and self._expandable is not None

    def allocate_oversize(self, nbytes: int, queue: int) -> Block:
        return self._reserve_new(nbytes, queue, self._route(queue) if self.routed else 0)

    def _refill(self, nbytes: int, queue: int, pool_number: int) -> Block:
        if nbytes >= MAX_REQUEST_BYTES:
            raise self.too_large_error(nbytes)
        return self._reserve_new(nbytes, queue, pool_number)

    def _reserve_new(self, nbytes: int, queue: int, pool_number: int) -> Block:
        self._device_error = None  # see Note [Recovery steps]
        segment, small = self.segment_size(nbytes)
        stack = self.caller_stack(frees=False)
        request = AllocRequest(nbytes, self.block_size(nbytes), segment, small, queue, pool_number, stack)
        steps = (
            self._retry_after_callbacks,
            self._collect_garbage_and_reserve,
            self._borrow,
            self._release_oversize_and_reserve,
            self._empty_and_reserve,
        )
        for step in steps:
            if (block := step(request)) is not None:
                if (idle := self.idle) is not None:
                    idle.on_reserved()
                return block
        # PyTorch fails here. Waiting may have freed a block in a segment that is still in use.
        if self.port.props.fine_segments and (block := self.try_allocate(nbytes, queue, pool_number)) is not None:
            return block
        raise self._oom_error(request)

    def detach_queues(self) -> None:
        super().detach_queues()
        self.idle = None  # without queues, it could not wait for work

    def _has_work(self) -> bool:
        """Return True if work is queued or captured."""
        return bool(self.capturing) or not all(queue.idle() for queue in tuple(self._queues.values()))

    # Recovery steps

    def _collect_garbage_and_reserve(self, request: AllocRequest) -> Block | None:
        threshold = self.settings.garbage_collection_threshold
        if self.limit is not None and threshold > 0:
            surplus = self.current(RESERVED_BYTES) - int(threshold * self.limit)
            garbage_collection.release_segments_older_than_average(self, request, surplus, self._release_segments)
        if (idle := self.idle) is not None:
            idle.trim(request.segment, request.stack)
        return self._reserve_within_limit(request)

    def _borrow(self, request: AllocRequest) -> Block | None:
        """Allocate from a private pool that lends its free memory (`use_on_oom`)."""
        if request.pool_number == 0:
            for pool in self.private.lenders():
                if (
                    block := self.try_allocate(request.nbytes, request.queue, pool.pool_number, borrowed=True)
                ) is not None:
                    return block
        return None

    def _release_oversize_and_reserve(self, request: AllocRequest) -> Block | None:
        max_split = self.settings.max_split_size
        if max_split == UNLIMITED:
            return None
        if not garbage_collection.release_oversize_segments(self, request, max_split, self._release_segments):
            return None
        return self._reserve_within_limit(request)

    def _empty_and_reserve(self, request: AllocRequest) -> Block | None:
        if request.queue in self.capturing:
            return None
        for _ in range(_MAX_RETRIES):
            self.empty(request.stack)
            self.num_alloc_retries += 1
            if (block := self._reserve_within_limit(request)) is not None or not self._cache_refilled():
                return block
        return None

    def _cache_refilled(self) -> bool:
        """Return True if another thread has freed memory into the cache since it was emptied."""
        return any(self.evictable(small) or self.idle_pages(small) for small in (False, True))

    def _reserve_within_limit(self, request: AllocRequest) -> Block | None:
        reserved = self.current(RESERVED_BYTES) + request.segment
        if self.limit is not None and reserved > self.limit:
            return None
        if self.settings.throw_on_cudamalloc_oom:
            _, total = self.port.memory_info()
            if reserved > int(self.settings.per_process_memory_fraction * total):
                self.num_oom_rejections += 1
                raise oom_message.rejected_error(self.name, request)
        expandable = self._expandable if self.private.source_of(request.pool_number) is None else None
        block = (
            self._commit_pages(expandable, request)
            if expandable and self.uses_expandable_segments
            else self._reserve(request)
        )
        if block is not None and request.pool_number:
            self.private.ever_used.add(request.pool_number)
        return block

    def reserve_space(self, nbytes: int, page: int, queue: int, small: bool, pool_number: int) -> int:
        """Reserve the address space of an expandable segment, without pages, and return its address."""
        if self._expandable is None:
            raise Unsupported(f"{self.name} has no expandable segments", ability="Growable")
        return self._expandable.reserve(nbytes, page, queue, small, pool_number)

    def page_bytes(self, small: bool) -> int:
        """Return the bytes that expandable segments of a size class map at a time."""
        # On devices where reserving costs microseconds, large pages would only waste the end of a small capacity.
        fine = small or self.port.props.fine_segments
        return _SMALL_PAGE if fine else self.settings.large_segment_size

    def _commit_pages(self, expandable: ExpandableSegments, request: AllocRequest) -> Block | None:
        page = self.page_bytes(request.small)
        _, total = self.port.memory_info()
        space = -(-self.settings.expandable_reserve(total) // page) * page
        expandable.last_error = None
        block = expandable.grow(request, space, page)
        if block is None:
            self._device_error = expandable.last_error
        if self.retired:
            raise ended_error(self.name)
        return block

    def _oom_text(self, request: AllocRequest, free: int, capacity: int) -> str:
        private = sum(self.free_bytes(pool.pool_number) for pool in self.private)
        reserve = self.settings.expandable_reserve(capacity) if self.uses_expandable_segments else None
        return oom_message.segment_text(self, request, free, capacity, private, reserve)

    # Releasing cached memory

    def after_fork_in_child(self, *, usable: bool) -> None:
        if self._expandable is not None:
            self._expandable.after_fork_in_child()
        super().after_fork_in_child(usable=usable)

    def _empty_pool(self, pool_number: int, stack: int, *, large_first: bool) -> None:
        for small in (False, True) if large_first else (True, False):
            self._release_segments([address for address, *_ in self.evictable(small, pool_number)], stack)
            if self._expandable is not None:
                self._expandable.shrink(small, pool_number, stack)
        # PyTorch keeps a space whose first page could not be mapped, and with it the pool.
        if self._expandable is not None and pool_number and self.port.props.fine_segments:
            self._expandable.release_unused_spaces(pool_number)
