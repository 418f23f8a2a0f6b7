"""Reference model of the heap allocator (PyTorch's MPS allocator): buffers are placed in heaps and cached whole.

Each queue has five pools, by size and storage mode. A freed buffer keeps its place and size; only released buffers
become gaps for others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forebay.errors import ForebayError, OutOfMemory
from support.model.heap_buffers import Buffer, HeapPool
from support.model.heap_tables import HeapLayout, HeapTables
from support.model.pool import MIB
from support.model.watermarks import HIGH, format_size, high_limit, low_limit, low_ratio

__all__ = ["HeapLayout", "HeapModel"]

_USAGES = ("shared", "private", "scalar")
_MAX_EXCESS = 32 * MIB  # by how much a reused buffer may exceed the request


@dataclass
class _Request:
    size: int
    pool: HeapPool
    pressure: bool


class HeapModel(HeapTables):
    """One device. Requests must be smaller than `longest` bytes; the watermarks are ratios of `recommended` bytes.

    Raises ForebayError for invalid ratios.
    """

    def __init__(
        self,
        recommended: int,
        longest: int,
        *,
        unified: bool = True,
        alignment: int = 256,
        high: float = HIGH,
        low: float | None = None,
        capacity: int | None = None,
    ) -> None:
        super().__init__(capacity)
        self.recommended, self.longest = recommended, longest
        self.unified, self.alignment = unified, alignment
        self.high = high_limit(high, recommended)
        self.low = low_limit(low_ratio(unified) if low is None else low, high, recommended)
        self.callbacks: list[Callable[[], bool]] = []  # each returns True if it freed memory

    def set_high(self, ratio: float) -> None:
        """Set the high watermark. The low watermark is unchanged, even if it is higher."""
        self.high = high_limit(ratio, self.recommended)

    def allocate(self, nbytes: int, queue: int = 0, usage: str | None = None) -> Buffer:
        """Allocate a buffer. Raises OutOfMemory if all recovery steps fail, ForebayError for an invalid size."""
        usage = usage or ("shared" if self.unified else "private")
        if usage not in _USAGES or nbytes < 1 or (usage == "scalar" and nbytes > MIB):
            raise ValueError(f"{nbytes} bytes, {usage}")
        if nbytes >= self.longest:
            raise ForebayError(f"Invalid buffer size: {format_size(nbytes)}")
        self.process_pending_frees()
        size = -(-nbytes // self.alignment) * self.alignment
        pool = self.pool(queue, self._pool_name(nbytes, size, usage))
        pressure = not pool.small and self.low is not None and self.low - self.driver < MIB
        request = _Request(size, pool, pressure)
        buffer = self._reuse(request)
        if buffer is None and request.pressure and size < sum(each.size for each in self._cached(pool)):
            self._collect_garbage(pool)
        if buffer is None:
            buffer = (
                self._place(request)
                or self._run_callbacks_and_reuse(request)
                or self._release_and_place(request)
                or self._empty_and_place(request)
            )
        if buffer is None:
            raise OutOfMemory(self._out_of_memory(request))
        self.mark_live(buffer)
        return buffer

    def empty(self) -> None:
        """Wait for all work, then release all cached buffers and empty heaps."""
        self.finish(*self.busy)
        self.process_pending_frees()
        for pool in self.pools.values():
            for buffer in pool.cached():
                self.release(buffer)
            for heap in tuple(pool.heaps):
                self.return_if_empty(heap)

    def _pool_name(self, nbytes: int, size: int, usage: str) -> str:
        if usage == "scalar":
            return "scalar"
        if nbytes <= 8 and self.unified:
            return "shared small"
        return f"{usage} {'small' if size <= MIB else 'large'}"

    def _cached(self, pool: HeapPool) -> list[Buffer]:
        """Return the cached buffers of the same usage of all queues."""
        return [buffer for each in self.same_usage(pool) for buffer in each.cached()]

    # Reuse and placement

    def _reuse(self, request: _Request) -> Buffer | None:
        """Return the smallest sufficient cached buffer. A much larger one is released instead where that helps."""
        if self._exceeds_limit(request):
            return None
        pool = request.pool
        if self.low is not None and not pool.small:
            for buffer in self._cached(pool):
                buffer.age += 1
        found = next((buffer for buffer in pool.cached() if buffer.size >= request.size), None)
        if found is None or found.size <= request.size + _MAX_EXCESS:
            return found
        if any(heap.available >= request.size for heap in pool.heaps):
            return None
        if pool.queue not in self.busy:
            self.release(found)  # the heap is kept: the request will be placed there
            request.pressure = False
            return None
        if request.pressure:
            self.release(found)  # the heap is kept, as its queue is busy
            return None
        return found

    def _place(self, request: _Request) -> Buffer | None:
        """Place a buffer in the heap with the smallest sufficient gap, or in a new heap."""
        if self._exceeds_limit(request):
            return None
        fitting = [heap for heap in request.pool.heaps if heap.available >= request.size]
        if fitting:
            return min(fitting, key=lambda heap: (heap.available, heap.number)).put(request.size)
        heap = self.new_heap(request.pool, *_heap_size(request))
        return None if heap is None else heap.put(request.size)

    def _exceeds_limit(self, request: _Request) -> bool:
        return self.high is not None and self.driver + request.size > self.high

    # Recovery steps

    def _collect_garbage(self, pool: HeapPool) -> None:
        """Release old idle buffers of all queues until the low watermark is met; then release empty dedicated heaps."""
        assert self.low is not None
        target = self.driver - self.low
        idle = [buffer for buffer in self._cached(pool) if buffer.heap.pool.queue not in self.busy]
        reclaimed = 0
        while reclaimed < target and idle:  # each pass frees at least the oldest
            average = sum(buffer.age for buffer in idle) / len(idle)
            for buffer in tuple(idle):
                if reclaimed < target and buffer.age >= average:
                    reclaimed += buffer.size
                    idle.remove(buffer)
                    if self.release(buffer).own:
                        self.return_if_empty(buffer.heap)

    def _run_callbacks_and_reuse(self, request: _Request) -> Buffer | None:
        """Run the callbacks, then retry, whatever they return."""
        for callback in self.callbacks:
            callback()
        return self._reuse(request)

    def _release_and_place(self, request: _Request) -> Buffer | None:
        """Release one sufficient cached buffer, or the largest ones until enough bytes are free; then retry."""
        cached = request.pool.cached()
        released = 0
        for buffer in [each for each in cached if each.size >= request.size][:1] or reversed(cached):
            if released < request.size:
                released += buffer.size
                self.return_if_empty(self.release(buffer))
        return self._place(request) if released >= request.size else None

    def _empty_and_place(self, request: _Request) -> Buffer | None:
        self.empty()
        return self._place(request)

    def _out_of_memory(self, request: _Request) -> str:
        heaps, others = format_size(self.reserved), format_size(self.driver - self.reserved)
        limit = "" if self.high is None else f", max allowed: {format_size(self.high)}"
        advice = (
            " Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations"
            " (may cause system failure)."
        )
        return (
            f"MPS backend out of memory (MPS allocated: {heaps}, other allocations: {others}{limit})."
            f" Tried to allocate {format_size(request.size)} on {request.pool.storage} pool."
            f"{advice if limit else ''}"
        )


def _heap_size(request: _Request) -> tuple[int, bool]:
    """Return the size of a new heap, and whether it is dedicated to this buffer."""
    if request.size <= MIB:
        return 8 * MIB, False
    if request.size < 10 * MIB:
        return 32 * MIB, False
    if request.size < 512 * MIB and not request.pressure:
        return 1024 * MIB, False
    return -(-request.size // (2 * MIB)) * 2 * MIB, True
