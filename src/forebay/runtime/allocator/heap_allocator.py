"""Metal's way to have memory: heaps that hold whole buffers. PyTorch's order of remedies for MPS, one rung a line.

A free buffer keeps its size and serves again, even a smaller request, until it is released; then it is room for a new
buffer of its heap. (torch-semantics 4.1: PyTorch until about 2.13. Since then it places buffers by itself.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from forebay._core import Block
from forebay.errors import ForebayError, WrongState
from forebay.runtime.allocator import oom_message
from forebay.runtime.allocator.caching_allocator import Allocator
from forebay.runtime.allocator.expandable_segments import Request
from forebay.runtime.allocator.pending_frees import Order
from forebay.runtime.allocator.private_pools import PoolId
from forebay.runtime.allocator.statistics import RESERVED_BYTES
from forebay.runtime.settings.allocator_settings import DEFAULT, UNLIMITED, AllocatorSettings
from forebay.spi import Heaps, Port, Queue
from forebay.watermarks import Watermarks

__all__ = ["HeapAllocator", "heap_size"]

_MIB = 1 << 20
_SCALAR = 8  # bytes: so little may be shared wherever the host has the same memory
_SMALL = _MIB
_OWN = 512 * _MIB  # from here on a buffer has a heap of its own
_TIERS = ((_SMALL, 8 * _MIB), (10 * _MIB - 1, 32 * _MIB), (_OWN - 1, 1024 * _MIB))  # buffers up to: their heaps
_QUANTUM = 2 * _MIB  # of heaps of their own
_OTHER, _SCALARS = (1 << 31) + 1, (1 << 31) + 2  # homes: of the storage mode that is not the usual one, of scalars


def heap_size(nbytes: int, *, short: bool) -> int:
    """Bytes of the heap for a new buffer; `short`: memory is, so that large ones get no more than they need.

    >>> [heap_size(size << 20, short=False) >> 20 for size in (1, 2, 10, 600)]
    [8, 32, 1024, 600]
    """
    if nbytes > _most_in_shared(short=short):
        return -(-nbytes // _QUANTUM) * _QUANTUM
    return next(heap for most, heap in _TIERS if nbytes <= most)


def _most_in_shared(*, short: bool) -> int:
    """How long a buffer may be to get a heap that others will be in as well."""
    return _TIERS[1 if short else 2][0]


class _Cached(NamedTuple):
    address: int
    nbytes: int
    queue: int
    age: int
    grows: bool = False


class HeapAllocator(Allocator):
    """An allocator by the rules of `torch.mps`. Those of `torch.cuda`'s settings mean nothing here.

    A buffer, and the room of a heap, is reused by its own queue only; PyTorch had one queue then.
    """

    def __init__(
        self,
        name: str,
        port: Port,
        heaps: Heaps,
        queues: Mapping[int, Queue],
        settings: AllocatorSettings = DEFAULT,
        orders: tuple[Callable[[], Order[int]], Callable[[], Order[PoolId]]] = (set[int], set[PoolId]),
        watermarks: Watermarks | None = None,  # the environment's
    ) -> None:
        super().__init__(name, port, queues, settings, orders)
        self._heaps = heaps
        self._usual = "shared" if heaps.unified else "private"
        self._watermarks = watermarks or Watermarks.of_environment(heaps)
        self._others = 0  # bytes that the device has lent to others than this allocator, when it was looked last
        self._own: set[int] = set()  # heaps that were made for one large buffer
        self.make_home(_OTHER)
        self.make_home(_SCALARS, waits=True)
        for home in (_OTHER, _SCALARS):
            self.private.add_common(home)
        self._push_policy()

    # Rules

    def apply_settings(self, settings: AllocatorSettings) -> None:
        """They are CUDA's: what the pool was told does not change, and the port, which may be closed, is not asked."""
        self.settings = settings

    @property
    def watermarks(self) -> Watermarks:
        """Both, in shares of the recommended memory."""
        return self._watermarks

    def set_memory_fraction(self, fraction: float) -> None:
        """The high watermark: a share of the recommended memory, 0 to 2; 0 is without a limit."""
        self.set_watermarks(self._watermarks.with_high(fraction))

    def set_watermarks(self, watermarks: Watermarks) -> None:
        """Both, from now on. What is allocated stays."""
        self._watermarks = watermarks
        self.look_at_others()

    def rules(self) -> dict[str, Any]:
        return {"heaps": asdict(self._heaps), "watermarks": str(self._watermarks)}

    def memory_fraction(self) -> float:
        return self._watermarks.high

    def capacity_changed(self) -> None:
        """What is recommended stays."""

    def look_at_others(self) -> None:
        """What they have of the device is not for this allocator, whose pool cannot ask by itself."""
        self._others = max(self.driver_allocated() - self.current(RESERVED_BYTES), 0)
        self._push_policy()

    def _push_policy(self) -> None:
        self.limit = self._watermarks.most
        allowed = 0 if self.limit is None else max(self.limit - self._others, 1)
        ages, buffers = self._watermarks.low > 0, self._heaps.alignment
        self.set_policy((0,) * 16, UNLIMITED, 0, 0, False, ages, False, buffers, allowed)

    # Which buffer pool

    def allocate_for(self, nbytes: int, queue: int = 0, usage: str = "") -> Block:
        """As `allocate`, in memory that is "shared" with the host, "private" to the device, or for a "scalar".

        A scalar's memory waits for its own queue when it is given back. A private pool has memory of the usual mode
        alone. ValueError for another usage, and for a scalar of more than 1 MiB.
        """
        if nbytes >= self._heaps.longest:  # more than the core's ints hold, perhaps
            raise self.beyond(nbytes)
        home = self._home_for(nbytes, usage or self._usual)
        if self.routed and (private := self._home(queue)):
            home = private  # a graph's memory, say, is nobody else's, whatever it is for
        if self.waiting:
            self._settle(queue)
        block = self.take(nbytes, queue, home)
        return self._refill(nbytes, queue, home) if block is None else block

    def _home_for(self, nbytes: int, usage: str) -> int:
        if usage == "scalar":
            if nbytes > _SMALL:
                raise ValueError(f"a scalar has at most {_SMALL} bytes, not {nbytes}")
            return _SCALARS
        if usage not in ("shared", "private"):
            raise ValueError(f"usage is 'shared', 'private' or 'scalar', not {usage!r}")
        # On one memory the usual mode is shared, and what is as small as a scalar is shared anyway.
        return 0 if usage == self._usual or (nbytes <= _SCALAR and self._heaps.unified) else _OTHER

    def _storage_mode(self, home: int) -> str:
        if home == _OTHER:
            return "private" if self._heaps.unified else "shared"
        return "shared" if home == _SCALARS else self._usual

    def beyond(self, nbytes: int) -> ForebayError:
        return oom_message.too_long(nbytes)

    # The ladder

    def _refill(self, nbytes: int, queue: int, home: int) -> Block:
        """Cheapest remedy first."""
        if nbytes >= self._heaps.longest:
            raise self.beyond(nbytes)
        size = self.rounded(nbytes)
        self._refusal = None
        self.look_at_others()
        request = Request(nbytes, size, size, size <= _SMALL, queue, home)
        request.short = not request.small and self._is_short()
        remedies = (
            self._spare_oversize,
            self._collect_and_place,
            self._ask_callbacks,
            self._release_some_and_place,
            self._empty_and_place,
        )
        for remedy in remedies:
            if (block := remedy(request)) is not None:
                return block
        raise self._out_of_memory(request)

    def _is_short(self) -> bool:
        low = self._watermarks.short_from
        return low is not None and low - self.driver_allocated() < _MIB

    def _ask_callbacks(self, request: Request) -> Block | None:
        self._callbacks_freed()
        return self._look_again(request)  # whatever they say, as PyTorch

    def _look_again(self, request: Request) -> Block | None:
        return super()._look_again(request) or self._spare_oversize(request)

    def _spare_oversize(self, request: Request) -> Block | None:
        """What becomes of the only buffer that is large enough, where it is far too large: it serves at worst."""
        address, size, room = self.nearest(request.nbytes, request.queue, request.home)
        if not size or room or self._beyond(request):
            return None
        idle = self._idle(request.queue)
        if not idle and not request.short:
            return self.take_at(address, request.nbytes, request.queue, request.home)
        self.release(address, size)
        request.short = request.short and not idle
        return None

    def _collect_and_place(self, request: Request) -> Block | None:
        if request.short:
            cached = self._cached(request)
            if sum(each.nbytes for each in cached) > request.size:
                self._collect(cached)
        return self._place(request)

    def _collect(self, cached: list[_Cached]) -> None:
        """Release what lay idle for longer than the average, until memory is not short any more."""
        low = self._watermarks.short_from
        surplus = 0 if low is None else self.driver_allocated() - low
        idle = [each for each in cached if self._idle(each.queue)]
        while idle and surplus > 0:
            average = sum(each.age for each in idle) / len(idle)
            old = list(_up_to(surplus, [each for each in idle if each.age >= average]))
            self._release(old, self._own)
            surplus -= sum(each.nbytes for each in old)
            idle = [each for each in idle if each.age < average]

    def _release_some_and_place(self, request: Request) -> Block | None:
        """The smallest cached buffer that is large enough, or of the others the largest, as many as it takes."""
        mine = [each for each in self._cached(request) if each.queue == request.queue]
        going = [each for each in mine if each.nbytes >= request.size][:1]
        if not going:
            going = list(_up_to(request.size, mine[::-1]))
        self._release(going)
        return self._place(request) if sum(each.nbytes for each in going) >= request.size else None

    def _empty_and_place(self, request: Request) -> Block | None:
        if request.queue in self.capturing:
            return None
        self.empty()
        self.num_alloc_retries += 1
        return self._place(request)

    def _place(self, request: Request) -> Block | None:
        """A new buffer, in a heap that has room, or a new heap."""
        if self._beyond(request):
            return None
        block = self.place(request.nbytes, request.queue, request.home)
        if block is None:
            heap = heap_size(request.size, short=request.short)
            block = self._reserve(replace(request, segment=heap))
            if block is not None:
                alone = request.size > _most_in_shared(short=request.short)
                (self._own.add if alone else self._own.discard)(block.address)
        if block is not None and 0 < request.home < _OTHER:
            self.private.grown.add(request.home)
        return block

    def _beyond(self, request: Request) -> bool:
        return self.limit is not None and self.driver_allocated() + request.size > self.limit

    def _sentence(self, request: Request, free: int, capacity: int) -> str:
        other = max(capacity - free - self.current(RESERVED_BYTES), 0)
        return oom_message.heap_sentence(self, request, other, self._storage_mode(request.home))

    # Giving back

    def _cached(self, request: Request) -> list[_Cached]:
        """The free buffers of its pool, of all queues: by queue, and then by size."""
        return [_Cached(*row) for row in self.evictable(request.small, request.home, pieces=True)]

    def _release(self, buffers: list[_Cached], heaps: set[int] | None = None) -> None:
        """Make room of them. Of these heaps, or all, one that is empty then goes back, unless its queue is at work."""
        emptied: dict[int, int] = {}  # and their queues
        for each in buffers:
            heap = self.release(each.address, each.nbytes)
            if heap and self._idle(each.queue) and (heaps is None or heap in heaps):
                emptied[heap] = each.queue
        self.leaving.add(sorted(emptied))
        # Until then another thread may have had it, and left work behind: that one waits for the next `_give_back`.
        idle = {heap for heap, queue in emptied.items() if self._idle(queue)}
        self.leaving.release(tuple(entry for entry in self.leaving.entries() if entry[0] in idle))
        self._forget_own()

    def _forget_own(self) -> None:
        """Another heap may come to the address of one that went."""
        self._own.difference_update([heap for heap in tuple(self._own) if not self.owns(heap)])

    def _idle(self, handle: int) -> bool:
        """Whether the queue has no work left. One that is unknown, or was closed, has none."""
        queue = self._queues.get(handle)
        return handle not in self.capturing and (queue is None or queue.idle())

    def empty(self) -> None:
        """Give all idle memory back to the port, once all work is done: as PyTorch, also where there is nothing."""
        with suppress(WrongState):  # this is a queue's own thread, which cannot wait for itself
            self.wait_for_all()
        super().empty()
        for home in (_OTHER, _SCALARS):
            self._empty_home(home, large_first=True)

    def _empty_home(self, home: int, *, large_first: bool) -> None:
        for small in (False, True) if large_first else (True, False):
            for address, nbytes, *_ in self.evictable(small, home, pieces=True):
                self.release(address, nbytes)
            self._give_back([address for address, *_ in self.evictable(small, home)])
        self._forget_own()


def _up_to(wanted: int, cached: list[_Cached]) -> Iterator[_Cached]:
    """So many of them that they have as many bytes."""
    for each in cached:
        if wanted <= 0:
            return
        wanted -= each.nbytes
        yield each
