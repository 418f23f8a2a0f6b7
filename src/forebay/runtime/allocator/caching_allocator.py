"""Base class of the caching allocators: a native block pool over one port, with deferred frees and OOM handling.

The pool only has the tables: Note [Pools call nothing].

A subclass decides which memory to reserve and in which order to try recovery steps when no cached block fits: CUDA's
segments (`segment_allocator`), Metal's heaps (`heap_allocator`). A destructor, a signal handler or another thread may
run between any two statements: Note [Memory is in a table at every moment], Note [Deferred frees].
"""

from __future__ import annotations

import threading
import warnings
from abc import abstractmethod
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from forebay._core import Block
from forebay.errors import (
    DeviceError,
    ForebayError,
    ForebayWarning,
    OutOfMemory,
    Unsupported,
    WrongState,
    ended_error,
    without_frames,
)
from forebay.runtime.allocator import oom_message
from forebay.runtime.allocator._reservations import PoolUser, call_entry, reserve_and_adopt
from forebay.runtime.allocator.captured_frees import CapturedFrees
from forebay.runtime.allocator.idle_memory import IdleMemory
from forebay.runtime.allocator.pending_releases import PendingReleases
from forebay.runtime.allocator.private_pools import PrivatePools
from forebay.runtime.allocator.request import AllocRequest
from forebay.runtime.allocator.segment_sources import SegmentSources
from forebay.runtime.base.deferred_frees import DeferredFrees, OrderedSet
from forebay.runtime.base.pool_ids import PoolId
from forebay.runtime.history.recorded_pool import RecordedPool
from forebay.runtime.settings.allocator_settings import DEFAULT, AllocatorSettings
from forebay.spi import ExternalQueues, Port, Queue

__all__ = ["UNORDERED", "Allocator", "IterationOrders", "OutOfMemoryObserver"]

# Device index, bytes requested from the device, bytes available at most (capacity, or the limit), bytes free.
OutOfMemoryObserver = Callable[[int, int, int, int], object]

# Set types for queues and for private pools, which fix the order of iteration.
IterationOrders = tuple[Callable[[], OrderedSet[int]], Callable[[], OrderedSet[PoolId]]]
UNORDERED: IterationOrders = (set[int], set[PoolId])


class Allocator(RecordedPool):
    """A caching allocator over one port. `allocate(nbytes, queue)` returns a Block; dropping the Block frees it.

    The free of a block that other queues use (`Block.record_stream`) is pending until they have completed the work
    queued before the free. `allocate` raises OutOfMemory when every recovery step has failed. `orders` are the set
    types for queues and for private pools, which fix the order of iteration.
    """

    def __init__(
        self,
        name: str,
        port: Port,
        queues: Mapping[int, Queue],
        settings: AllocatorSettings = DEFAULT,
        orders: IterationOrders = UNORDERED,
    ) -> None:
        super().__init__(name, port)
        self.failures: dict[int, DeviceError] = {}  # of queued work, by queue; the next synchronize raises them
        self.settings: AllocatorSettings = settings
        self.shown_max_split: int = settings.max_split_size  # PyTorch's statistics keep reporting the initial value
        self.idle: IdleMemory | None = None  # if reserving memory is cheap
        self.private: PrivatePools = PrivatePools(self, orders[1])
        self.explains_oom = True  # False: OutOfMemory carries PyTorch's text only
        self.oom_observers: list[OutOfMemoryObserver] = []  # called before each OutOfMemory is raised
        self.free_memory_callbacks: list[Callable[[], bool]] = []  # may free memory; True: search the pool again
        self._threads_in_callbacks: set[int] = set()
        self.capturing: ChainMap[int, int] = ChainMap[int, int]()  # queues under graph capture; see `begin_capture`
        self._queues = queues
        self.external_queues: Mapping[int, Queue] = {}  # that their creators may destroy
        self._queue_order = orders[0]
        self._deferred_frees = DeferredFrees[int](orders[0])  # tokens of freed blocks
        self._captured_frees = CapturedFrees()  # Note [Captured frees]
        self.sources: SegmentSources = SegmentSources(port, self.private.source_of)
        self.pending_releases: PendingReleases = PendingReleases(self.evict, self.sources.release_of)
        self.uncached_releases: list[Callable[[], object]] = []  # of freed uncached blocks
        self._device_error: OutOfMemory | None = None  # raised by the port for the current request
        self.retired = False  # True: the device may be closed at any time, as no block of new memory is returned
        self.reset_accumulated()

    # Policy

    def apply_settings(self, settings: AllocatorSettings) -> None:
        """Replace the settings. Existing allocations are not affected."""
        self.settings = settings
        self._push_policy()

    @abstractmethod
    def set_memory_fraction(self, fraction: float) -> None:
        """Limit reserved memory to a fraction of the device's; ValueError or ForebayError for an invalid fraction."""

    @abstractmethod
    def memory_fraction(self) -> float:
        """Return the limit as a fraction; without a limit 1.0 for segments, 0.0 for heaps."""

    @abstractmethod
    def capacity_changed(self) -> None:
        """Recompute the limit from the same fraction."""

    @abstractmethod
    def _push_policy(self) -> None:
        """Pass the policy to the native pool."""

    @property
    def uses_expandable_segments(self) -> bool:
        """True if new memory is committed as pages of expandable segments."""
        return False

    def id_of(self, pool_number: int) -> PoolId:
        return self.private.id_of(pool_number)

    def reset_accumulated(self) -> None:
        super().reset_accumulated()
        self.num_alloc_retries = 0
        self.num_ooms: int = 0
        self.num_sync_all_streams: int = 0
        self.num_reserved: int = 0  # segments: the number since the last reset
        self._num_device_free = 0
        self.pending_releases.num_released = 0
        self.num_oom_rejections = 0

    @property
    def num_device_alloc(self) -> int:
        """Calls that reserved memory from the device: one per segment, or per range of pages."""
        return self.num_reserved

    @property
    def num_device_free(self) -> int:
        """Calls that released memory to the device."""
        return self._num_device_free + self.pending_releases.num_released

    # Callbacks of the native pool

    def _route(self, queue: int) -> int:
        return self.private.pool_of_allocation(queue)

    def allocate_oversize(self, nbytes: int, queue: int) -> Block:  # noqa: ARG002 -- for subclasses
        """Allocate at least `MAX_REQUEST_BYTES`, which fails after the same recovery steps as a smaller request."""
        raise self.too_large_error(nbytes)

    @abstractmethod
    def _refill(self, nbytes: int, queue: int, pool_number: int) -> Block:
        """Allocate a block that the cache does not have, trying the cheapest recovery step first."""

    def _defer(self) -> None:
        """Start tracking blocks freed while other queues use them. Runs in destructors, so errors only warn."""
        if not self._queues:  # after a fork or in the exit handler, when the names of modules may be gone
            for token, *_ in self.deferred():
                self.complete_free(token)
            return
        self._collect_deferred()
        self.has_pending_frees: bool = True
        try:
            for token in self._deferred_frees.mark():
                self.complete_free(token)
        except ForebayError as error:
            warnings.warn(
                f"{self.name}: freed blocks stay pending until their queues can be signalled: {error}",
                ForebayWarning,
                stacklevel=2,
            )

    def _collect_deferred(self) -> None:
        if not (deferred := self.deferred()):
            return
        if self.capturing:
            captures, reuse = self.capturing.maps, self.settings.graph_capture_record_stream_reuse
            for token, users, pool, queue in deferred:
                own = self._queue_of(queue)
                self._captured_frees.add(token, own, self._sorted(users), pool, captures, reuse=reuse)
        else:
            self._deferred_frees.add([(token, self._sorted(users), pool) for token, users, pool, _ in deferred])
        self.acknowledge_deferred(deferred[-1][0])  # only after `add`: a signal handler may raise in between

    def _sorted(self, handles: list[int]) -> list[Queue]:
        """Return the queues in PyTorch's order of iteration, without those that are closed."""
        order = self._queue_order()
        for handle in handles:
            order.add(handle)
        return [queue for handle in order if (queue := self._queue_of(handle)) is not None]

    def _queue_of(self, handle: int) -> Queue | None:
        """Return the queue with the handle, or None if it is closed."""
        found = self._queues.get(handle)
        return self.external_queues.get(handle) if found is None else found

    def _process_pending_frees(self, queue: int | None = None) -> None:
        """Free the pending blocks whose queues are done. The pool calls this before allocating if there are any."""
        if queue in self.capturing:
            if self.settings.graph_capture_record_stream_reuse and (found := self._queue_of(queue or 0)) is not None:
                for token in self._captured_frees.reusable(found):
                    self.complete_free(token)
            return
        self.has_pending_frees = False
        stack: int | None = None
        try:
            self._complete_captured_frees()
            for token in self._deferred_frees.reached():
                if stack is None:
                    stack = self.caller_stack(frees=False)
                self.complete_free(token, stack)
        finally:
            if self._deferred_frees or self._captured_frees:
                self.has_pending_frees = True

    def _complete_captured_frees(self) -> None:
        for token in self._captured_frees.completed(self._deferred_frees.append):
            self.complete_free(token)

    def driver_allocated(self) -> int:
        """Return the bytes of device memory in use by this process and all others."""
        free, total = self.port.memory_info()
        return total - free

    def allocate_for(self, nbytes: int, queue: int = 0, usage: str = "") -> Block:  # noqa: ARG002 -- it has one kind
        """Allocate as `allocate` does, in memory of a storage mode. Unsupported without heaps."""
        raise Unsupported(f"{self.name} has no storage modes, so usage={usage!r} is not available", ability="Heaps")

    # Recovery steps that subclasses share

    def _retry_after_callbacks(self, request: AllocRequest) -> Block | None:
        return self._retry_cached(request) if self._callbacks_freed() else None

    def _callbacks_freed(self) -> bool:
        me = threading.get_ident()
        if not self.free_memory_callbacks or me in self._threads_in_callbacks:  # no recursion when a callback allocates
            return False
        try:
            self._threads_in_callbacks.add(me)
            freed = [callback() for callback in tuple(self.free_memory_callbacks)]  # all, even if one freed enough
        finally:
            self._threads_in_callbacks.discard(me)
        return any(freed)

    def port_reserve(self, pool_number: int) -> Callable[[int], int]:  # noqa: ARG002 -- it has one kind of memory
        """Return the port's function that reserves a segment for a pool."""
        return self.port.reserve

    def _reserve(self, request: AllocRequest) -> Block | None:
        external = self.private.source_of(request.pool_number) is not None
        reserve: Callable[[Any], int] = self.sources.reserve if external else self.port_reserve(request.pool_number)
        what, release = (request, self.sources.release) if external else (request.segment, self.port.release)
        sizes = request.nbytes, request.segment
        try:
            block = reserve_and_adopt(self, reserve, what, release, *sizes, request.queue, request.pool_number)
        except OutOfMemory as error:
            self._device_error = without_frames(error)
            return None
        if self.retired:  # after the adoption
            raise ended_error(self.name)
        return block

    def _retry_cached(self, request: AllocRequest) -> Block | None:
        """Search the pool again, after memory may have been freed."""
        return self.try_allocate(request.nbytes, request.queue, request.pool_number)

    @abstractmethod
    def _oom_text(self, request: AllocRequest, free: int, capacity: int) -> str:
        """Return PyTorch's text for the OutOfMemory error."""

    def too_large_error(self, nbytes: int) -> ForebayError:
        """Return the error for a request so large that no recovery step is tried."""
        return oom_message.too_large_error(self.name, nbytes)

    def _oom_error(self, request: AllocRequest) -> OutOfMemory:
        free, total = self.port.memory_info()
        self.record_oom(request.size, request.queue, free, request.pool_number)
        self.num_ooms += 1
        error = oom_message.oom_error(
            self, request, self._oom_text(request, free, total), free, total, explain=self.explains_oom
        )
        if self._device_error is not None and self._device_error.code:  # a system error, not exhausted capacity
            error.code, error.call = self._device_error.code, self._device_error.call
            error.__cause__ = self._device_error
        for observer in tuple(self.oom_observers):
            observer(self.port.props.index, request.segment, total if self.limit is None else self.limit, free)
        return error

    # Graph capture

    def begin_capture(self, pool: PoolId, queues: MutableMapping[int, int], *, user: PoolUser | None = None) -> None:
        """Route allocations for `queues` to the private pool, which gets a user unless the caller has one.

        `queues` maps each captured queue to its last tick before the capture. The caller may add queues later.
        """
        self.private.push_route(pool, queues.__contains__, user=user)
        self.capturing = ChainMap(queues, *self.capturing.maps)

    def end_capture(self, queues: MutableMapping[int, int]) -> None:
        """End the routing of allocations for `queues`. Repeatable."""
        self.capturing = ChainMap(*(others for others in self.capturing.maps if others is not queues))
        self.private.remove_route(queues.__contains__)

    # Releasing cached memory

    def empty(self, stack: int | None = None) -> None:
        """Release all cached memory to the port, after waiting for queued work that may use it.

        Private pools are emptied only if they have no users left. `stack` is that of the request that needs the memory,
        for the history.
        """
        if stack is None:
            stack = self.caller_stack(frees=True)
        self.num_sync_all_streams += 1
        self._wait_for_pending_frees(stack)
        self._empty_pool(0, stack, large_first=True)
        for pool in self.private.idle():
            self._empty_pool(pool.pool_number, stack, large_first=False)
        for pool_number in self.private.abandoned():
            self._empty_pool(pool_number, stack, large_first=False)
        self.private.delete_empty()
        self.release_uncached()

    def release_pool(self, pool: PoolId) -> None:
        """Drop one user of the pool and stop lending its memory; the last user's drop releases its cached memory."""
        if self.private.ended:
            return
        self.private.stop_lending(pool)
        pool_number = self.private[pool].pool_number
        if self.private.decref(pool):  # from here on, another thread's `empty` may delete the pool
            self._release_unused(pool_number)

    def release_pool_of(self, user: PoolUser, pool: PoolId) -> None:
        """Do the same for a user that `private.add_user` returned. Repeatable, also after an interrupt."""
        found = self.private.get(pool)
        if self.private.ended or found is None:
            return
        self.private.stop_lending(pool)
        self.private.end_user(user)
        if found.users == 0:
            self._release_unused(found.pool_number)

    def empty_pool(self, pool: PoolId) -> None:
        """Release the cached memory of a pool that has no users left. Repeatable; nothing if there is no such pool."""
        found = self.private.get(pool)
        if found is not None and found.users == 0:
            self._release_unused(found.pool_number)
        elif found is not None:
            self.num_sync_all_streams += 1

    def _release_unused(self, pool_number: int) -> None:
        stack = self.caller_stack(frees=True)
        self.num_sync_all_streams += 1
        self._wait_for_pending_frees(stack, pool_number)
        self._empty_pool(pool_number, stack, large_first=False)
        self.private.delete_empty()

    @abstractmethod
    def _empty_pool(self, pool_number: int, stack: int, *, large_first: bool) -> None:
        """Release the cached memory of one pool to the port."""

    def _wait_for_pending_frees(self, stack: int, pool_number: int | None = None) -> None:
        self.has_pending_frees = False
        try:
            self._complete_captured_frees()
            for token in self._deferred_frees.wait(self._wait_until_reached, pool_number):
                self.complete_free(token, stack)
        finally:
            if self._deferred_frees or self._captured_frees:
                self.has_pending_frees = True

    def _release_segments(self, addresses: list[int], stack: int) -> None:
        """Release free segments once all queues are done.

        A block is free in the order of its queue, so work that uses it may still be queued, which ports do not check.
        """
        self.pending_releases.add(addresses, stack)
        entries = self.pending_releases.entries()
        try:
            if entries:
                self.synchronize()
        except WrongState:  # no wait is possible here: a later call releases them
            return
        self.pending_releases.release(entries)

    def release_uncached(self) -> None:
        """Call the functions that release memory of freed uncached blocks, once all queues are done. Repeatable.

        Where no wait is possible, the next call or `empty_cache` does it.
        """
        if not self.uncached_releases:
            return
        try:
            self.synchronize()
        except WrongState:
            return
        for release in tuple(self.uncached_releases):
            call_entry(self.uncached_releases, release)

    def synchronize(self) -> None:
        """Wait until all queued work on the device has completed.

        Raises WrongState on a queue's own thread, or if work on queues of other libraries cannot be waited for because
        a capture forbids it.
        """
        for queue in tuple(self._queues.values()):
            self._drain(queue)
        if self.external_queues and isinstance(self.port, ExternalQueues):
            if self.capturing:
                raise WrongState(f"{self.name}: a capture forbids waiting for queues of other libraries")
            self.port.synchronize()

    def _drain(self, queue: Queue) -> None:
        """Wait until the queue's work has completed; under capture, the work queued before the capture."""
        tick = self.capturing.get(queue.handle)
        if tick is not None:
            self._wait(queue, tick)
        elif not queue.idle():
            self._wait(queue, queue.signal())

    def _wait_until_reached(self, queue: Queue, tick: int) -> bool:
        """Wait for the tick and return True; return False on the queue's own thread, which cannot wait."""
        try:
            self._wait(queue, tick)
        except WrongState:
            return False
        return True

    def _wait(self, queue: Queue, tick: int) -> None:
        try:
            queue.wait(tick)
        except DeviceError as failure:
            if queue.reached() < tick:
                raise
            self.failures.setdefault(queue.handle, without_frames(failure))

    # Process exit and fork

    def detach_queues(self) -> None:
        """Detach the queues, which are closed; frees are never pending from now on."""
        self._queues, self.external_queues = {}, {}
        self._deferred_frees.detach()

    def after_fork_in_child(self, *, usable: bool) -> None:
        """Complete all pending frees in a forked child, where no work is pending. Detach unusable queues."""
        if not usable:
            self.detach_queues()
        self.pending_releases.after_fork_in_child()
        self.private.after_fork_in_child()
        self._collect_deferred()
        for token in (*self._captured_frees.drain(), *self._deferred_frees.drain()):
            self.complete_free(token)
        self.has_pending_frees = False
