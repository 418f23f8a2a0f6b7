"""Caching allocator of pinned host memory, with the policy of PyTorch's CachingHostAllocator.

Blocks are cached in size buckets and never split or merged; the most recently freed block is reused first. Its tables
are in `_cache`: Note [Pinned tables change in one step].

# Note [Pinned frees are in one order]
Each queue that copies from or to a block is recorded in it. When the block is freed, an event is recorded on each of
these queues, and the block is reusable once all have completed. Events are processed in the order of the frees across
all queues, as in PyTorch: a pending one also delays those behind it, whose own queues have finished, and statistics and
addresses show that. Rejected: one order for each queue, as for memory of devices, which would reuse blocks earlier.
Test: tests/runtime/pinned/test_pinned_allocator.py::test_pending_frees_complete_in_order_across_queues
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from forebay._base.byte_sizes import LIMIT
from forebay.backends.common._disposal import Disposable
from forebay.errors import DeviceError, ForebayError, Forked, warn_unraisable
from forebay.runtime.base.deferred_frees import DeferredFrees
from forebay.runtime.pinned._cache import HostBlock, PinnedCache, PinnedLease
from forebay.runtime.pinned.history import ALL, STATE, Frames, PinnedHistory, segment_dict
from forebay.runtime.pinned.poller import Poller
from forebay.runtime.settings import allocator_settings as rules

if TYPE_CHECKING:
    from forebay.spi import PinnedHost, Queue

__all__ = ["PinnedAllocator", "PinnedBlock"]


class PinnedBlock(Disposable):
    """Handle of a pinned block in use; the block is freed when the last reference is dropped."""

    __slots__ = ("__weakref__", "_allocator", "_lease")

    def __init__(self, allocator: PinnedAllocator, lease: PinnedLease) -> None:
        self._allocator = allocator
        self._lease = lease

    def _dispose(self) -> None:
        if hasattr(self, "_lease"):
            try:
                self.free()
            except ForebayError as error:
                warn_unraisable(f"pinned memory could not be freed: {error}")

    @property
    def address(self) -> int:
        return self._live_block().address

    @property
    def size(self) -> int:
        """The bytes handed out, at least as many as requested."""
        return self._live_block().size

    @property
    def freed(self) -> bool:
        return self._lease.freed

    def record_stream(self, queue: Queue) -> None:
        """Record that the queue copies from or to the block, which is not reused before that work is done."""
        self._live_block()
        self._lease.uses[id(queue)] = queue

    def free(self) -> None:
        """Free the block now. Calling it again does nothing."""
        self._allocator.free_lease(self._lease)

    def _live_block(self) -> HostBlock:
        block = self._lease.block
        if block is None or self._lease.freed:
            raise ValueError("the pinned block was freed already")
        return block


class PinnedAllocator:
    """Allocator of one port's pinned memory, with the statistics of `torch.cuda.host_memory_stats`.

    `settings` returns the current settings; `clock` is in nanoseconds.
    """

    def __init__(
        self,
        name: str,
        port: PinnedHost,
        settings: Callable[[], rules.AllocatorSettings] = lambda: rules.DEFAULT,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.name = name
        self.history: PinnedHistory = PinnedHistory()
        self._port: PinnedHost | None = port  # None in a forked child
        self._settings = settings
        self._clock = clock
        self._cache = PinnedCache()
        self._leases: dict[int, weakref.ref[PinnedLease]] = {}  # all that are not returned, and some that are
        self._deferred_frees = DeferredFrees[PinnedLease](one_fifo=True)
        self._closed = False
        self._poller_failed = False  # the settings ask for a thread, but the system cannot create one
        self._poller = Poller(self.process_pending_frees)

    # Allocating and freeing

    def allocate(self, nbytes: int) -> PinnedBlock:
        """Return a block of at least `nbytes`.

        Raises ValueError for an invalid size, DeviceError if the system pins no more.
        """
        if not 0 < nbytes <= LIMIT:
            raise ValueError(f"cannot pin {nbytes} bytes: a block has 1 to {LIMIT} bytes")
        if self._port is None:
            raise Forked(f"{self.name} was opened before this process was forked")
        frames = self.history.capture_stack(STATE)
        if self._poller_failed or not self._settings().pinned_use_background_threads:
            self.process_pending_frees(frames)
        lease = PinnedLease()
        self._leases[id(lease)] = weakref.ref(lease, partial(self._leases.pop, id(lease)))
        handle = PinnedBlock(self, lease)  # made first: whatever happens from here on, its destructor frees the memory
        size = self._rounded(nbytes)
        new = not self._cache.allocate(size, lease)
        if new:
            if self._settings().pinned_use_background_threads:
                self._poller_failed = not self._start_poller()
            self._allocate_new(self._port, size, lease)
        self.history.record_alloc(handle._live_block(), frames, new=new)  # noqa: SLF001 -- of this module
        return handle

    def free_lease(self, lease: PinnedLease) -> None:
        """Free the lease's block. Idempotent; a call after an interrupted one continues it."""
        if lease.block is None or lease.returned:
            return
        if lease.freed:
            self._mark_and_wake()
            return
        if self._port is None:  # the queues are the parent's: no free is deferred
            self._cache.free(lease, rules.UNLIMITED)
            return
        frames = self.history.capture_stack(ALL)
        self.history.record("free_requested", lease.block, frames or lease.block.frames)
        if not lease.uses:
            try:
                self._complete_free(lease, frames)
            finally:
                lease.freed = lease.returned
        else:
            self._deferred_frees.add([(lease, tuple(lease.uses.values()), 0)])
            lease.freed = True
            self._mark_and_wake()

    def _mark_and_wake(self) -> None:
        if not self._closed and self._port is not None:
            self._mark_frees(None)
            self._poller.wake()

    def empty(self) -> None:
        """Unpin all free blocks except those of the reserved segment."""
        self.process_pending_frees()
        self._cache.evict_all()
        self._unpin_evicted()

    def process_pending_frees(self, frames: Frames | None = None) -> bool:
        """Complete pending frees in order, up to the first whose queue is busy. Return True if any remain."""
        if self._closed:
            return False
        self._complete_reached_frees(frames)
        return bool(self._deferred_frees)

    def in_use(self) -> bool:
        """Return True if any block is allocated, or used by queued work. Works after `retire` and `close`."""
        self._complete_reached_frees(None)
        return bool(self._active())

    def _complete_reached_frees(self, frames: Frames | None) -> None:
        with suppress(ForebayError):  # reported when the block was freed; retried with each call
            self._mark_frees(frames)
        for lease in self._deferred_frees.reached():
            self._complete_free(lease, frames)

    def _mark_frees(self, frames: Frames | None) -> None:
        for lease in self._deferred_frees.mark():
            self._complete_free(lease, frames)

    # Pinning and unpinning

    def _rounded(self, nbytes: int) -> int:
        settings = self._settings()
        rounds = nbytes <= min(settings.pinned_max_round_threshold, settings.pinned_max_cached_size)
        return 1 << (nbytes - 1).bit_length() if rounds else nbytes

    def _allocate_new(self, port: PinnedHost, size: int, lease: PinnedLease) -> None:
        if self._cache.segment is None:
            self._reserve_segment(port)
        if self._cache.allocate_from_segment(size, lease):
            return
        try:
            self._pin_block(port, size, lease)
        except DeviceError:
            if not self._cache.free_blocks():
                raise
            self.empty()  # PyTorch raises here although memory is cached
            self._pin_block(port, size, lease)

    def _pin_block(self, port: PinnedHost, size: int, lease: PinnedLease) -> None:
        begin, address = self._clock(), 0
        try:
            address = port.pin(size)
            self._cache.add(HostBlock(address, size), lease, self._elapsed_us(begin))
        finally:
            if address and lease.block is None:  # interrupted by a signal handler
                port.unpin(address)

    def _reserve_segment(self, port: PinnedHost) -> None:
        size = self._settings().pinned_reserve_segment_size
        if not size:
            self._cache.set_segment(0, 0)
            return
        begin, address = self._clock(), 0
        try:
            address = port.pin(size)
            self._cache.set_segment(address, size, self._elapsed_us(begin))
        finally:
            if address and self._cache.segment != (address, size):  # interrupted, or another thread was faster
                port.unpin(address)

    def _complete_free(self, lease: PinnedLease, frames: Frames | None) -> None:
        if self._cache.free(lease, self._settings().pinned_max_cached_size) and lease.block is not None:
            self.history.record_free_completed(lease.block, frames)
        self._unpin_evicted()

    def _unpin_evicted(self) -> None:
        for block in self._cache.evicted():
            if self._port is not None:
                self._unpin(self._port, block)

    def _unpin(self, port: PinnedHost, block: HostBlock) -> None:
        if self._cache.unpin(block, port.unpin, self._clock):
            self.history.record("segment_free", block)

    def _elapsed_us(self, begin: int) -> int:
        return (self._clock() - begin) // 1000

    def _start_poller(self) -> bool:
        """Start the background thread. Return False if the system cannot create one."""
        return self._poller.start()

    # Statistics and snapshots

    def stats_as_nested_dict(self) -> dict[str, Any]:
        """Return all statistics in PyTorch's order. Sizes are bytes, times µs."""
        return _nested_stats(self._cache)

    @staticmethod
    def empty_stats() -> dict[str, Any]:
        """Return the statistics of an unused allocator."""
        return _nested_stats(PinnedCache())

    def stats(self) -> dict[str, int]:
        """Return all statistics under flat keys ("active_bytes.current"), in alphabetical order."""
        flat: dict[str, int] = {}
        for name, value in self.stats_as_nested_dict().items():
            flat |= (
                {f"{name}.{key}": number for key, number in value.items()} if isinstance(value, dict) else {name: value}
            )
        return dict(sorted(flat.items()))

    def reset_peaks(self) -> None:
        self._cache.reset_peaks()

    def reset_accumulated(self) -> None:
        self._cache.reset_accumulated()

    def segments(self) -> list[dict[str, Any]]:
        """Return every block in the schema of PyTorch's snapshots; an empty list while the history is off."""
        if not self.history.recording:
            return []
        inactive = [segment_dict(block, allocated=False, active=False) for block in self._cache.inactive()]
        active = [segment_dict(block, allocated=not lease.freed, active=True) for lease, block in self._active()]
        return sorted([*inactive, *active], key=lambda row: row["address"])

    def snapshot(self) -> dict[str, list[dict[str, Any]]]:
        """Return the parts of PyTorch's snapshots that are about pinned host memory."""
        return {"host_segments": self.segments(), "host_traces": self.history.traces()}

    def _active(self) -> list[tuple[PinnedLease, HostBlock]]:
        leases = [lease() for lease in self._leases.copy().values()]  # garbage collection may remove leases
        return [
            (lease, lease.block)
            for lease in leases
            if lease is not None and lease.block is not None and not lease.returned
        ]

    def check_invariants(self) -> str | None:
        """Return the first violated invariant, or None. Call it only while no other thread uses the allocator."""
        stats = self.stats()
        active = [block for _, block in self._active()]
        blocks = [*self._cache.inactive(), *active]
        spans = sorted((block.address, block.address + block.size) for block in blocks)
        invariants = {
            "the active statistics match the active blocks": (
                (stats["active_requests.current"], stats["active_bytes.current"])
                == (len(active), sum(block.size for block in active))
            ),
            "the allocation statistics match all blocks": (
                (stats["allocations.current"], stats["allocated_bytes.current"])
                == (len(blocks), sum(block.size for block in blocks))
            ),
            "no two blocks overlap": all(end <= start for (_, end), (start, _) in pairwise(spans)),
            "the blocks of the reserved segment are counted": self._cache.segment_blocks
            == sum(block.reserved for block in blocks),
            "each free block is in its bucket": all(
                (block.size - 1).bit_length() == at for at, free in self._cache.free_blocks().items() for block in free
            ),
        }
        return next((rule for rule, holds in invariants.items() if not holds), None)

    # Exit and fork

    def retire(self) -> None:
        """Stop the background thread after an emulation: `in_use` completes what is still pending."""
        self._poller.stop()

    def close(self) -> None:
        """Stop completing frees: the queues are closed, perhaps before the work that uses pinned memory was done."""
        self._closed = True
        self._poller.stop()

    def after_fork_in_child(self) -> None:
        """Detach from the port in a forked child, which must not unpin its parent's memory."""
        self._port = None


def _nested_stats(cache: PinnedCache) -> dict[str, Any]:
    totals = cache.totals()
    allocations = totals["allocations"]
    return {"num_host_alloc": allocations["allocated"], "num_host_free": allocations["freed"]} | {
        name: value if "peak" in value else _time_stats(value) for name, value in totals.items()
    }


def _time_stats(times: dict[str, int]) -> dict[str, int]:
    total, calls = times["total"], times["calls"]
    return {
        "total": total,
        "max": times["longest"],
        "min": times["shortest"],
        "count": calls,
        "avg": total // calls if calls else 0,
    }
