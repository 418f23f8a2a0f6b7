"""The allocator of heaps as one would explain it: Apple's, whose buffers are placed in heaps and cached whole.

Five pools for each queue, by size and by who may read them. A buffer that is freed stays where it is and as long as it
is; only what was released is room for others. It is slow, and meant to be read and compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forebay.errors import ForebayError, OutOfMemory
from support.model.heap_pieces import Buffer, HeapPool
from support.model.heap_tables import HeapTables, Picture
from support.model.pool import MIB
from support.model.watermarks import HIGH, high_limit, low_limit, low_ratio, size_in_words

__all__ = ["HeapModel", "Picture"]

_USAGES = ("shared", "private", "scalar")
_OVERSIZE = 32 * MIB  # so much longer than what is asked for may a cached buffer be


@dataclass
class _Request:
    size: int
    pool: HeapPool
    pressure: bool


class HeapModel(HeapTables):
    """One device: `longest` is what no request may reach, and the watermarks are ratios of `recommended`, in bytes.

    Raises ForebayError for ratios that are none.
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
        self.callbacks: list[Callable[[], bool]] = []  # each tells whether it freed anything

    def set_high(self, ratio: float) -> None:
        """The low watermark stays where it is, be it above."""
        self.high = high_limit(ratio, self.recommended)

    def allocate(self, nbytes: int, queue: int = 0, usage: str | None = None) -> Buffer:
        """Raises OutOfMemory when every remedy failed, and ForebayError for what no device could give."""
        usage = usage or ("shared" if self.unified else "private")
        if usage not in _USAGES or nbytes < 1 or (usage == "scalar" and nbytes > MIB):
            raise ValueError(f"{nbytes} bytes, {usage}")
        if nbytes >= self.longest:
            raise ForebayError(f"Invalid buffer size: {size_in_words(nbytes)}")
        self.settle()
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
                or self._ask_callbacks_and_reuse(request)
                or self._make_room_and_place(request)
                or self._empty_and_place(request)
            )
        if buffer is None:
            raise OutOfMemory(self._out_of_memory(request))
        self.hand_out(buffer)
        return buffer

    def empty(self) -> None:
        """Everything cached goes, of every queue, and every heap without a buffer: after all work is done."""
        self.finish(*self.busy)
        self.settle()
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
        """Of all queues."""
        return [buffer for each in self.alike(pool) for buffer in each.cached()]

    # The two ways to a buffer

    def _reuse(self, request: _Request) -> Buffer | None:
        """The smallest that is long enough. One that is much too long makes room instead, where that is better."""
        if self._is_too_much(request):
            return None
        pool = request.pool
        if self.low is not None and not pool.small:
            for buffer in self._cached(pool):
                buffer.age += 1
        found = next((buffer for buffer in pool.cached() if buffer.size >= request.size), None)
        if found is None or found.size <= request.size + _OVERSIZE:
            return found
        if any(heap.available >= request.size for heap in pool.heaps):
            return None
        if pool.queue not in self.busy:
            self.release(found)  # the heap stays: the request will go where this was
            request.pressure = False
            return None
        if request.pressure:
            self.release(found)  # and as its queue is busy, the heap stays here, too
            return None
        return found

    def _place(self, request: _Request) -> Buffer | None:
        """In the heap that is nearly full, of those that have room; in a new one if none has."""
        if self._is_too_much(request):
            return None
        fitting = [heap for heap in request.pool.heaps if heap.available >= request.size]
        if fitting:
            return min(fitting, key=lambda heap: (heap.available, heap.number)).put(request.size)
        heap = self.new_heap(request.pool, *_heap_size(request))
        return None if heap is None else heap.put(request.size)

    def _is_too_much(self, request: _Request) -> bool:
        return self.high is not None and self.driver + request.size > self.high

    # What is done about it when there is neither

    def _collect_garbage(self, pool: HeapPool) -> None:
        """Old buffers that nobody works on go, until the driver has no more than the low watermark.

        Memory is short for all queues, and theirs are asked. Of the heaps that are empty then, those go that came for
        one buffer.
        """
        assert self.low is not None
        target = self.driver - self.low
        idle = [buffer for buffer in self._cached(pool) if buffer.heap.pool.queue not in self.busy]
        reclaimed = 0
        while reclaimed < target and idle:  # a pass frees at least the oldest
            average = sum(buffer.age for buffer in idle) / len(idle)
            for buffer in tuple(idle):
                if reclaimed < target and buffer.age >= average:
                    reclaimed += buffer.size
                    idle.remove(buffer)
                    if self.release(buffer).own:
                        self.return_if_empty(buffer.heap)

    def _ask_callbacks_and_reuse(self, request: _Request) -> Buffer | None:
        """Whatever they say, and if there are none."""
        for callback in self.callbacks:
            callback()
        return self._reuse(request)

    def _make_room_and_place(self, request: _Request) -> Buffer | None:
        """One that is long enough goes, or the longest ones until that many bytes went."""
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
        heaps, others = size_in_words(self.reserved), size_in_words(self.driver - self.reserved)
        limit = "" if self.high is None else f", max allowed: {size_in_words(self.high)}"
        advice = (
            " Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations"
            " (may cause system failure)."
        )
        return (
            f"MPS backend out of memory (MPS allocated: {heaps}, other allocations: {others}{limit})."
            f" Tried to allocate {size_in_words(request.size)} on {request.pool.storage} pool."
            f"{advice if limit else ''}"
        )


def _heap_size(request: _Request) -> tuple[int, bool]:
    """And whether it is for this one buffer."""
    if request.size <= MIB:
        return 8 * MIB, False
    if request.size < 10 * MIB:
        return 32 * MIB, False
    if request.size < 512 * MIB and not request.pressure:
        return 1024 * MIB, False
    return -(-request.size // (2 * MIB)) * 2 * MIB, True
