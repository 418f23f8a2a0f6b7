"""The allocator: what to do when the pool has nothing. PyTorch's order of remedies, one rung a line.

Nobody waits under a lock, and memory on its way back to the port stays in sight of all: a destructor, a signal
handler or another thread may come in between anywhere.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import count

import numpy as np

from penstock._core import Block, Pool
from penstock.errors import DeviceError, OutOfMemory, PenstockError, PenstockWarning, WrongState
from penstock.runtime import out_of_memory
from penstock.runtime.waiting_blocks import WaitingBlocks
from penstock.snapshot.model import SEGMENT
from penstock.spi import Port, Queue

__all__ = ["Allocator"]


class Allocator(Pool):
    """A pool over one port. `allocate(nbytes, queue)` gives a Block, whose end gives the memory back.

    A block that other queues use (`Block.used_on`) comes back when they have passed the point they had reached when it
    was given back. Raises OutOfMemory when every remedy failed.
    """

    def __init__(self, name: str, port: Port, queues: Mapping[int, Queue]) -> None:
        self.name = name
        self.port = port
        self.failures: dict[int, DeviceError] = {}  # of work, met while waiting here: for the next to synchronize
        self._queues = queues
        self._given = WaitingBlocks(queues, self.settle)
        # Segments, numbered, that were the pool's and still are the port's.
        self._leaving: deque[tuple[int, int]] = deque()
        self._serial = count()
        self._refusal: OutOfMemory | None = None  # the port's own words, of last time
        self._releasing = threading.RLock()  # held for calls of `release` alone, and never while waiting for a queue
        self._inherited: frozenset[int] = frozenset()  # in a forked child: segments of its parent's port
        self.reset_accumulated()

    def reset_accumulated(self) -> None:
        super().reset_accumulated()
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.num_sync_all_streams = 0
        self.num_device_alloc = 0
        self.num_device_free = 0

    # The pool calls these three.

    def _refill(self, nbytes: int, queue: int) -> Block:
        """Cheapest remedy first; each rung may make the next take succeed."""
        if nbytes >= out_of_memory.MOST_BYTES:
            raise out_of_memory.beyond(self.name, nbytes)
        for remedy in (self._grow, self._empty_and_grow):
            while remedy(nbytes, queue):
                if (block := self.take(nbytes, queue)) is not None:
                    return block  # else another thread was quicker: grow again
        # Where PyTorch gives up: the waiting may have freed a block in a segment that stays.
        if (block := self.take(nbytes, queue)) is not None:
            return block
        raise self._out_of_memory(nbytes, queue)

    def _defer(self) -> None:
        """Blocks were given back while other queues use them. Called by destructors, so it only warns."""
        if not self._queues:  # after the fork or the exit handler; at that time a module may have no names left
            for token, _ in self.deferred():
                self.settle(token)
            return
        self._given.add(self.deferred())
        self.waiting = True
        try:
            self._given.mark()
        except PenstockError as error:
            warnings.warn(
                f"{self.name}: blocks given back wait until asking works: {error}", PenstockWarning, stacklevel=2
            )

    def _settle(self) -> None:
        """Free what its queues are done with. The pool calls it before each allocation while anything waits."""
        self.waiting = False
        try:
            self._given.settle_reached()
        finally:
            self.waiting = self.waiting or bool(self._given)

    # The rungs.

    def _grow(self, nbytes: int, queue: int) -> bool:
        size, small = self.segment_size(nbytes, self.port.props.fine_segments)
        try:
            address = self.port.reserve(size)
        except OutOfMemory as refusal:
            self._refusal = refusal.with_traceback(None)
            return False
        try:
            self.adopt(address, size, queue, small)
        except BaseException:
            if not self.owns(address):
                self.port.release(address)
            raise
        self.num_device_alloc += 1
        return True

    def _empty_and_grow(self, nbytes: int, queue: int) -> bool:
        self.empty()
        self.num_alloc_retries += 1
        return self._grow(nbytes, queue)

    def _out_of_memory(self, nbytes: int, queue: int) -> OutOfMemory:
        self.num_ooms += 1
        free, total = self.port.memory_info()
        self.note_oom(self.rounded(nbytes), queue, free)
        segment, _ = self.segment_size(nbytes, self.port.props.fine_segments)
        error = out_of_memory.explain(self, self.name, nbytes, segment, queue, free, total)
        if self._refusal is not None and self._refusal.code:  # not the capacity was at its end, but the system
            error.code, error.call, error.__cause__ = self._refusal.code, self._refusal.call, self._refusal
        return error

    def empty(self) -> None:
        """Give every wholly free segment back to the port, once no queue can still be at work in it."""
        self.num_sync_all_streams += 1
        self._given.mark()
        self._wait_out()
        candidates = [address for address, _ in self.evictable() if address not in self._inherited]
        # In one go, so that no other thread looks while memory is in neither.
        self._leaving.extend(zip(filter(self.evict, candidates), self._serial, strict=False))
        self._release()

    def _wait_out(self) -> None:
        for queue, tick in self._given.marks():
            with suppress(WrongState):  # this is that queue's own thread
                self._wait(queue, tick)
        self._settle()

    def _release(self) -> None:
        """A block is free in its queue's order, so work on it may still be queued; a port does not watch for that."""
        leaving = tuple(self._leaving)
        try:
            for queue in tuple(self._queues.values()) if leaving else ():
                if not queue.idle():
                    self._wait(queue, queue.signal())
        except WrongState:  # this is a queue's own thread, which cannot wait for itself: the next to come releases them
            return
        with self._releasing:  # so that whoever comes second finds the memory with the port
            for entry in leaving:
                try:
                    self._leaving.remove(entry)
                except ValueError:  # another thread was quicker
                    continue
                try:
                    self.port.release(entry[0])
                except DeviceError:
                    self._leaving.append(entry)
                    raise
                self.num_device_free += 1

    def _wait(self, queue: Queue, tick: int) -> None:
        try:
            queue.wait(tick)
        except DeviceError as failure:
            if queue.reached() < tick:
                raise
            self.failures.setdefault(queue.handle, failure.with_traceback(None))

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
        self._leaving.clear()
        self._releasing = threading.RLock()
        self._inherited = frozenset(np.frombuffer(self.tables(trace=False)[0], SEGMENT)["address"].tolist())
        self._given.add(self.deferred())
        self._given.settle_all()
        self.waiting = False
