"""CUDA's way to have memory: segments that are split. PyTorch's order of remedies, one rung a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forebay._core import Block
from forebay.runtime.allocator import garbage_collection, oom_message
from forebay.runtime.allocator.caching_allocator import Allocator
from forebay.runtime.allocator.expandable_segments import Growth, Request
from forebay.runtime.allocator.pending_frees import Order
from forebay.runtime.allocator.private_pools import PoolId
from forebay.runtime.allocator.statistics import RESERVED_BYTES
from forebay.runtime.settings.allocator_settings import DEFAULT, UNLIMITED, AllocatorSettings
from forebay.spi import Growable, Port, Queue

__all__ = ["SegmentAllocator"]

_SMALL_PAGE = 2 << 20  # of growing segments of the small kind
_TRIES = 3  # at emptying the cache for one request, where other threads fill it again


class SegmentAllocator(Allocator):
    """An allocator by the rules of `torch.cuda`, under the settings that those have."""

    def __init__(
        self,
        name: str,
        port: Port,
        queues: Mapping[int, Queue],
        settings: AllocatorSettings = DEFAULT,
        orders: tuple[Callable[[], Order[int]], Callable[[], Order[PoolId]]] = (set[int], set[PoolId]),
    ) -> None:
        super().__init__(name, port, queues, settings, orders)
        self._growth = self._growth_over(port)
        self._fraction = 1.0  # of the device's memory: the limit
        if settings.per_process_memory_fraction < 1:
            self.set_memory_fraction(settings.per_process_memory_fraction)
        self._push_policy()

    def _growth_over(self, port: Port) -> Growth | None:
        return Growth(self, port, self._wait_for) if isinstance(port, Growable) else None

    # Rules

    def set_memory_fraction(self, fraction: float) -> None:
        """Reserve no more than this share of the device's memory; 1 is without a limit, as in PyTorch since 2.9."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        _, total = self.port.memory_info()
        self.limit = int(fraction * total) if fraction < 1 else None
        self._fraction = fraction
        self._push_policy()

    def memory_fraction(self) -> float:
        return 1.0 if self.limit is None else self.limit / self.port.memory_info()[1]

    def capacity_changed(self) -> None:
        """The limit stays the same share of the device's memory."""
        self.set_memory_fraction(self._fraction)

    def _push_policy(self) -> None:
        rules = self.settings
        self.set_policy(
            rules.roundup_power2_divisions,
            rules.max_split_size,
            rules.max_non_split_rounding,
            rules.large_segment_size,
            self.grows,
            self.limit is not None and rules.garbage_collection_threshold > 0,
            self.port.props.fine_segments,
        )

    def rules(self) -> dict[str, Any]:
        fine = self.port.props.fine_segments
        return {"allocator_settings": self.settings.as_snapshot(), "fine_segments": fine}

    @property
    def grows(self) -> bool:
        """Whether new memory comes as pages of growing segments."""
        return self.settings.expandable_segments and self._growth is not None

    def _refill(self, nbytes: int, queue: int, home: int) -> Block:
        """Cheapest remedy first."""
        if nbytes >= oom_message.MOST_BYTES:
            raise self.beyond(nbytes)
        self._refusal = None
        segment, small = self.segment_size(nbytes)
        request = Request(nbytes, self.rounded(nbytes), segment, small, queue, home)
        cheap = (self._ask_callbacks, self._collect_and_grow, self._borrow, self._trim_and_grow)
        for remedy in (*cheap, self._empty_and_grow):
            if (block := remedy(request)) is not None:
                return block
        # Where PyTorch gives up: the waiting may have freed a block in a segment that stays.
        if self.port.props.fine_segments and (block := self.take(nbytes, queue, home)) is not None:
            return block
        raise self._out_of_memory(request)

    # The rungs

    def _collect_and_grow(self, request: Request) -> Block | None:
        threshold = self.settings.garbage_collection_threshold
        if self.limit is not None and threshold > 0:
            surplus = self.current(RESERVED_BYTES) - int(threshold * self.limit)
            garbage_collection.collect_old(self, surplus, self._give_back)
        return self._grow(request)

    def _borrow(self, request: Request) -> Block | None:
        """From a private pool whose owner allows it."""
        if request.home == 0:
            for pool in self.private.lenders():
                if (block := self.take(request.nbytes, request.queue, pool.home, borrowed=True)) is not None:
                    return block
        return None

    def _trim_and_grow(self, request: Request) -> Block | None:
        most = self.settings.max_split_size
        if most == UNLIMITED or not garbage_collection.collect_oversize(self, request, most, self._give_back):
            return None
        return self._grow(request)

    def _empty_and_grow(self, request: Request) -> Block | None:
        if request.queue in self.capturing:
            return None
        for _ in range(_TRIES):
            self.empty()
            self.num_alloc_retries += 1
            if (block := self._grow(request)) is not None or not self._idle():
                return block
        return None

    def _idle(self) -> bool:
        """Whether another thread has put memory back into the cache since it was emptied."""
        return any(self.evictable(small) or self.idle_pages(small) for small in (False, True))

    def _grow(self, request: Request) -> Block | None:
        reserved = self.current(RESERVED_BYTES) + request.segment
        if self.limit is not None and reserved > self.limit:
            return None
        if self.settings.throw_on_cudamalloc_oom:
            _, total = self.port.memory_info()
            if reserved > int(self.settings.per_process_memory_fraction * total):
                self.num_oom_rejections += 1
                raise oom_message.rejected(self.name, request)
        growth = self._growth if self.private.source_of(request.home) is None else None
        block = self._grow_pages(growth, request) if growth and self.grows else self._reserve(request)
        if block is not None and request.home:
            self.private.grown.add(request.home)
        return block

    def _grow_pages(self, growth: Growth, request: Request) -> Block | None:
        # Where memory costs microseconds, a large page would only keep the end of a small capacity out of reach.
        fine = request.small or self.port.props.fine_segments
        page = _SMALL_PAGE if fine else self.settings.large_segment_size
        _, total = self.port.memory_info()
        space = -(-self.settings.expandable_reserve(total) // page) * page
        growth.refusal = None
        block = growth.grow(request, space, page)
        if block is None:
            self._refusal = growth.refusal
        return block

    def _sentence(self, request: Request, free: int, capacity: int) -> str:
        return oom_message.sentence(self, request, free, capacity)

    # Giving back

    def _empty_home(self, home: int, *, large_first: bool) -> None:
        for small in (False, True) if large_first else (True, False):
            self._give_back([address for address, *_ in self.evictable(small, home)])
            if self._growth is not None:
                self._growth.shrink(small, home)
        # PyTorch keeps the space whose first page could not come, and so the pool.
        if self._growth is not None and home and self.port.props.fine_segments:
            self._growth.forget(home)

    def abandon_queues(self, port: Port) -> None:
        super().abandon_queues(port)
        self._growth = self._growth_over(port)
