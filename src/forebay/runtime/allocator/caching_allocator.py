"""What every allocator does: a pool over one port, whose blocks wait for queues, and whose memory goes back.

Which memory is had, and in which order remedies are tried when the pool has nothing, is a subclass's: CUDA's segments
(`segment_allocator`), Metal's heaps (`heap_allocator`). Nobody waits under a lock, and memory on its way back to the
port stays in sight of all: a destructor, a signal handler or another thread may come in between anywhere.
"""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import numpy as np

from forebay._core import Block, Pool
from forebay.errors import DeviceError, ForebayError, ForebayWarning, OutOfMemory, Unsupported, WrongState
from forebay.runtime.allocator import oom_message
from forebay.runtime.allocator.expandable_segments import Request
from forebay.runtime.allocator.pending_frees import Order, WaitingBlocks
from forebay.runtime.allocator.pending_releases import Leaving
from forebay.runtime.allocator.private_pools import PoolId, PrivatePools
from forebay.runtime.allocator.segment_sources import Sources
from forebay.runtime.history.annotations import Labels
from forebay.runtime.settings.allocator_settings import DEFAULT, AllocatorSettings
from forebay.snapshot.model import SEGMENT
from forebay.spi import Port, Queue

__all__ = ["Allocator", "Observer"]

# Device index, what was asked of the device, what may be had (its memory, or the limit), what is free. All in bytes.
Observer = Callable[[int, int, int, int], object]


class Allocator(Pool, ABC):
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
        self._refusal: OutOfMemory | None = None  # the port's own words, of last time
        self.reset_accumulated()

    # Rules

    def apply_settings(self, settings: AllocatorSettings) -> None:
        """The rules from now on. What was allocated under others stays."""
        self.settings = settings
        self._push_policy()

    @abstractmethod
    def set_memory_fraction(self, fraction: float) -> None:
        """Reserve no more than this share of what there is; ValueError or ForebayError for what is no share."""

    @abstractmethod
    def memory_fraction(self) -> float:
        """That share; 1.0 of segments, or 0.0 of heaps, is without a limit."""

    @abstractmethod
    def capacity_changed(self) -> None:
        """The limit stays the same share."""

    @abstractmethod
    def _push_policy(self) -> None:
        """Tell the pool the rules."""

    @abstractmethod
    def rules(self) -> dict[str, Any]:
        """What a snapshot notes of them, for a replay."""

    @property
    def grows(self) -> bool:
        """Whether new memory comes as pages of growing segments."""
        return False

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

    @abstractmethod
    def _refill(self, nbytes: int, queue: int, home: int) -> Block:
        """Cheapest remedy first."""

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
        except ForebayError as error:
            warnings.warn(
                f"{self.name}: blocks given back wait until asking works: {error}", ForebayWarning, stacklevel=2
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

    def driver_allocated(self) -> int:
        """Bytes that the device has lent to us and to all others."""
        free, total = self.port.memory_info()
        return total - free

    def allocate_for(self, nbytes: int, queue: int = 0, usage: str = "") -> Block:  # noqa: ARG002 -- it has one kind
        """As `allocate`, in memory of a storage mode, where there are some."""
        raise Unsupported(f"the memory of {self.name} is all of one mode: none of it is {usage!r}", ability="Heaps")

    # What the ladders share

    def _ask_callbacks(self, request: Request) -> Block | None:
        return self._look_again(request) if self._callbacks_freed() else None

    def _callbacks_freed(self) -> bool:
        me = threading.get_ident()
        if not self.callbacks or me in self._asking:  # one that allocates is not asked by itself
            return False
        try:
            self._asking.add(me)
            freed = [callback() for callback in tuple(self.callbacks)]  # each, though one may have freed enough
        finally:
            self._asking.discard(me)
        return any(freed)

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

    def _look_again(self, request: Request) -> Block | None:
        """In the pool, where memory may have come back."""
        return self.take(request.nbytes, request.queue, request.home)

    @abstractmethod
    def _sentence(self, request: Request, free: int, capacity: int) -> str:
        """Why there was no memory, as PyTorch says it."""

    def beyond(self, nbytes: int) -> ForebayError:
        """The error for so much that no remedy is tried for."""
        return oom_message.beyond(self.name, nbytes)

    def _out_of_memory(self, request: Request) -> OutOfMemory:
        free, total = self.port.memory_info()
        self.note_oom(request.size, request.queue, free, request.home)
        self.num_ooms += 1
        error = oom_message.explain(self, request, self._sentence(request, free, total), free, total)
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

    @abstractmethod
    def _empty_home(self, home: int, *, large_first: bool) -> None:
        """Give its idle memory back to the port."""

    def _wait_out(self, home: int | None = None) -> None:
        self.waiting = False
        try:
            self._given.wait_out(self._reaches, home)
        finally:
            if self._given:
                self.waiting = True

    def _give_back(self, addresses: list[int]) -> None:
        """A block is free in its queue's order, so work on it may still be queued; a port does not watch for that."""
        self.leaving.add(addresses)
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
        segments = np.frombuffer(self.tables(trace=False)[0], SEGMENT)["address"]
        self.leaving = Leaving(self, frozenset(segments.tolist()))
        self.private.abandon()
        self._hear()
        self._given.settle_all()
        self.waiting = False
