"""The allocator: what to do when the pool has nothing. PyTorch's order of remedies, one rung a line.

Nobody waits under a lock, and memory on its way back to the port stays in sight of all: a destructor, a signal
handler or another thread may come in between anywhere.
"""

from __future__ import annotations

import threading
import warnings
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping

import numpy as np

from penstock._core import Block, Pool
from penstock.errors import DeviceError, OutOfMemory, PenstockError, PenstockWarning, WrongState
from penstock.runtime import collecting, out_of_memory
from penstock.runtime.growth import Growth, Request
from penstock.runtime.labels import Labels
from penstock.runtime.leaving import Leaving
from penstock.runtime.private_pools import PoolId, PrivatePools
from penstock.runtime.settings import DEFAULT, UNLIMITED, AllocatorSettings
from penstock.runtime.sources import Sources
from penstock.runtime.statistics import RESERVED_BYTES
from penstock.runtime.waiting_blocks import Order, WaitingBlocks
from penstock.snapshot.model import SEGMENT
from penstock.spi import Growable, Port, Queue

__all__ = ["Allocator", "Observer"]

# Device index, what was asked of the device, what may be had (its memory, or the limit), what is free. All in bytes.
Observer = Callable[[int, int, int, int], object]

_SMALL_PAGE = 2 << 20  # of growing segments of the small kind
_TRIES = 3  # at emptying the cache for one request, where other threads fill it again


class Allocator(Pool):
    """A pool over one port. `allocate(nbytes, queue)` gives a Block, whose end gives the memory back.

    A block that other queues use (`Block.used_on`) comes back when they have passed the point they had reached when it
    was given back. Raises OutOfMemory when every remedy failed. `orders` make sets of queues and of private pools,
    which are visited in the set's order.
    """

    def __init__(
        self,
        name: str,
        port: Port,
        queues: Mapping[int, Queue],
        settings: AllocatorSettings = DEFAULT,
        orders: tuple[Callable[[], Order[int]], Callable[[], Order[PoolId]]] = (set[int], set[PoolId]),
    ) -> None:
        self.name = name
        self.port = port
        self.failures: dict[int, DeviceError] = {}  # of work, met while waiting here: for the next to synchronize
        self.settings = settings
        self.shown_max_split = settings.max_split_size  # PyTorch's statistics keep the first
        self.limit: int | None = None  # of reserved bytes
        self._fraction = 1.0  # of the device's memory: the same
        self.private = PrivatePools(self, orders[1])
        self.explains = True  # off: OutOfMemory says what PyTorch's does, and no more
        self.observers: list[Observer] = []  # told of every OutOfMemory before it is raised
        self.callbacks: list[Callable[[], bool]] = []  # may free memory; True: it is worth another look
        self._asking: set[int] = set()  # threads that ask them
        self.labels = Labels()  # of the recording, if there is one
        self.capturing = ChainMap[int, int]()  # queues whose work is being recorded; see `begin_capture`
        self._queues = queues
        self._given = WaitingBlocks(queues, self.settle, orders[0])
        self.sources = Sources(self)
        self.leaving = Leaving(self)
        self._growth = Growth(self, port, self._wait_for) if isinstance(port, Growable) else None
        self._refusal: OutOfMemory | None = None  # the port's own words, of last time
        self._inherited: frozenset[int] = frozenset()  # in a forked child: segments of its parent's port
        self.reset_accumulated()
        if settings.per_process_memory_fraction < 1:
            self.set_memory_fraction(settings.per_process_memory_fraction)
        self._push_policy()

    # Rules

    def apply_settings(self, settings: AllocatorSettings) -> None:
        """The rules from now on. What was allocated under others stays."""
        self.settings = settings
        self._push_policy()

    def set_memory_fraction(self, fraction: float) -> None:
        """Reserve no more than this share of the device's memory; 1 is without a limit, as in PyTorch since 2.9."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        _, total = self.port.memory_info()
        self.limit = int(fraction * total) if fraction < 1 else None
        self._fraction = fraction
        self._push_policy()

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

    @property
    def grows(self) -> bool:
        """Whether new memory comes as pages of growing segments."""
        return self.settings.expandable_segments and self._growth is not None

    def reset_accumulated(self) -> None:
        super().reset_accumulated()
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.num_sync_all_streams = 0
        self.num_device_alloc = 0
        self.num_device_free = 0
        self.num_oom_rejections = 0

    # The pool calls these five.

    def _home(self, queue: int) -> int:
        return self.private.home_of(queue)

    def _note(self) -> int:
        return self.labels.number()

    def _refill(self, nbytes: int, queue: int, home: int) -> Block:
        """Cheapest remedy first."""
        if nbytes >= out_of_memory.MOST_BYTES:
            raise out_of_memory.beyond(self.name, nbytes)
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

    def _defer(self) -> None:
        """Blocks were given back while other queues use them. Called by destructors, so it only warns."""
        if not self._queues:  # after the fork or the exit handler; at that time a module may have no names left
            for token, *_ in self.deferred():
                self.settle(token)
            return
        self._hear()
        self.waiting = True
        try:
            self._given.mark()
        except PenstockError as error:
            warnings.warn(
                f"{self.name}: blocks given back wait until asking works: {error}", PenstockWarning, stacklevel=2
            )

    def _hear(self) -> None:
        if deferred := self.deferred():
            self._given.add(deferred)
            self.heard(deferred[-1][0])  # not before it is there: a signal's handler may raise in between

    def _settle(self, queue: int | None = None) -> None:
        """Free what its queues are done with. The pool calls it before each allocation while anything waits."""
        if queue in self.capturing:
            return
        self.waiting = False
        try:
            self._given.settle_reached()
        finally:
            if self._given:
                self.waiting = True

    # The rungs

    def _ask_callbacks(self, request: Request) -> Block | None:
        me = threading.get_ident()
        if not self.callbacks or me in self._asking:  # one that allocates is not asked by itself
            return None
        try:
            self._asking.add(me)
            freed = [callback() for callback in tuple(self.callbacks)]  # each, though one may have freed enough
        finally:
            self._asking.discard(me)
        return self.take(request.nbytes, request.queue, request.home) if any(freed) else None

    def _collect_and_grow(self, request: Request) -> Block | None:
        threshold = self.settings.garbage_collection_threshold
        if self.limit is not None and threshold > 0:
            surplus = self.current(RESERVED_BYTES) - int(threshold * self.limit)
            collecting.collect_old(self, surplus, self._give_back)
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
        if most == UNLIMITED or not collecting.collect_oversize(self, request, most, self._give_back):
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
                raise out_of_memory.rejected(self.name, request)
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

    def _reserve(self, request: Request) -> Block | None:
        try:
            address = self.sources.reserve(request)
        except OutOfMemory as refusal:
            self._refusal = refusal.with_traceback(None)
            return None
        try:
            block = self.adopt_for(request.nbytes, address, request.segment, request.queue, request.home)
        except BaseException:
            if not self.owns(address):
                self.sources.release(address)
            raise
        self.num_device_alloc += 1
        return block

    def _out_of_memory(self, request: Request) -> OutOfMemory:
        free, total = self.port.memory_info()
        self.note_oom(request.size, request.queue, free, request.home)
        self.num_ooms += 1
        error = out_of_memory.explain(self, request, free, total)
        if self._refusal is not None and self._refusal.code:  # not the capacity was at its end, but the system
            error.code, error.call, error.__cause__ = self._refusal.code, self._refusal.call, self._refusal
        for observer in tuple(self.observers):
            observer(self.port.props.index, request.segment, total if self.limit is None else self.limit, free)
        return error

    # Graphs

    def begin_capture(self, pool: PoolId, queues: MutableMapping[int, int]) -> None:
        """What is allocated for those queues, each with its last tick of before, goes to the pool; others may join."""
        self.private.begin(pool, queues.__contains__)
        self.capturing = ChainMap(queues, *self.capturing.maps)

    def end_capture(self, pool: PoolId, queues: MutableMapping[int, int]) -> None:
        self.capturing = ChainMap(*(others for others in self.capturing.maps if others is not queues))
        self.private.end(pool)

    # Giving back

    def empty(self) -> None:
        """Give all idle memory back to the port, once no queue can still be at work in it.

        Of the private pools it empties those that nobody uses any more.
        """
        self.num_sync_all_streams += 1
        self._wait_out()
        self._empty_home(0, large_first=True)
        for pool in self.private.idle():
            self._empty_home(pool.home, large_first=False)
        self.private.forget_empty()

    def release_pool(self, pool: PoolId) -> None:
        """One user of the pool less, and it lends nothing any more; after the last its idle memory goes back."""
        self.private.stop_lending(pool)
        home = self.private[pool].home
        if self.private.leave(pool):  # from now on whoever empties the cache may end it
            self.num_sync_all_streams += 1
            self._wait_out(home)
            self._empty_home(home, large_first=False)
            self.private.forget_empty()

    def _empty_home(self, home: int, *, large_first: bool) -> None:
        for small in (False, True) if large_first else (True, False):
            self._give_back([address for address, *_ in self.evictable(small, home)])
            if self._growth is not None:
                self._growth.shrink(small, home)
        # PyTorch keeps the space whose first page could not come, and so the pool.
        if self._growth is not None and home and self.port.props.fine_segments:
            self._growth.forget(home)

    def _wait_out(self, home: int | None = None) -> None:
        self.waiting = False
        try:
            self._given.wait_out(self._reaches, home)
        finally:
            if self._given:
                self.waiting = True

    def _give_back(self, addresses: list[int]) -> None:
        """A block is free in its queue's order, so work on it may still be queued; a port does not watch for that."""
        self.leaving.add([address for address in addresses if address not in self._inherited])
        entries = self.leaving.entries()
        try:
            for queue in tuple(self._queues.values()) if entries else ():
                self._wait_for_all_of(queue)
        except WrongState:  # this is a queue's own thread, which cannot wait for itself: the next to come releases them
            return
        self.leaving.release(entries)

    def wait_for_all(self) -> None:
        """Until the queues have done all that they have."""
        for queue in tuple(self._queues.values()):
            self._wait_for_all_of(queue)

    def _wait_for(self, handle: int) -> None:
        if (queue := self._queues.get(handle)) is not None:
            self._wait_for_all_of(queue)

    def _wait_for_all_of(self, queue: Queue) -> None:
        if queue.handle in self.capturing:
            self._wait(queue, self.capturing[queue.handle])
        elif not queue.idle():
            self._wait(queue, queue.signal())

    def _reaches(self, queue: Queue, tick: int) -> bool:
        """After waiting; not where this is that queue's own thread."""
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
            self.failures.setdefault(queue.handle, failure.with_traceback(None))

    # At the end of a process, and in a child

    def forget_queues(self) -> None:
        """They are closed: no block waits for one from now on."""
        self._queues = {}
        self._given.forget_queues()

    def abandon_queues(self, port: Port) -> None:
        """In a forked child: nothing waits any more, and new memory comes from the port.

        What the pool has is the child's own copy. It stays until the child ends, as it is not the port's to release.
        """
        self.forget_queues()
        self.port = port
        self.leaving = Leaving(self)
        self.private.abandon()
        self._growth = Growth(self, port, self._wait_for) if isinstance(port, Growable) else None
        self._inherited = frozenset(np.frombuffer(self.tables(trace=False)[0], SEGMENT)["address"].tolist())
        self._hear()
        self._given.settle_all()
        self.waiting = False
