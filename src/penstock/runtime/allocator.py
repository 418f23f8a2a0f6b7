"""The allocator: what to do when the pool has nothing. PyTorch's order of remedies, one rung a line.

No lock: each piece of work (a block that waits, a segment that leaves) is in one deque or in one thread's hands, and an
interruption puts it back. So a destructor, a signal handler or another thread may come in between anywhere.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from penstock._core import Block, Pool
from penstock.errors import DeviceError, OutOfMemory, PenstockError, PenstockWarning, WrongState
from penstock.runtime import out_of_memory
from penstock.snapshot.model import SEGMENT
from penstock.spi import Port, Queue

__all__ = ["Allocator"]

_T = TypeVar("_T")
_Waiting = tuple[int, list[tuple[Queue, int]]]  # a block's token, and the ticks it waits for


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
        self._unmarked: deque[tuple[int, list[int]]] = deque()  # blocks given back, and the queues that use them
        self._pending: dict[int, deque[_Waiting]] = {}  # by the queue that is waited for
        self._leaving: deque[int] = deque()  # segments that are not the pool's any more, and still the port's
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
        raise self._out_of_memory(nbytes, queue)

    def _defer(self) -> None:
        """Blocks were given back while other queues use them. Called by destructors, so it only warns."""
        self._unmarked.extend(self.deferred())
        self.waiting = True
        try:
            self._mark()
        except PenstockError as error:
            warnings.warn(
                f"{self.name}: blocks given back wait until asking works: {error}", PenstockWarning, stacklevel=2
            )

    def _settle(self) -> None:
        """Free what its queues are done with. The pool calls it before each allocation while anything waits."""
        self.waiting = False
        try:
            self._mark()
            for line in tuple(self._pending.values()):
                while (first := _pop(line)) is not None:
                    token, marks = first
                    queue, tick = marks[-1]
                    if queue.reached() < tick:
                        line.appendleft(first)
                        break
                    self._line_up(token, marks[:-1])
        finally:
            if self._unmarked or any(self._pending.values()):
                self.waiting = True

    def _mark(self) -> None:
        """Remember how far the queues must come for each block that was given back."""
        while (first := _pop(self._unmarked)) is not None:
            token, handles = first
            try:
                # A queue that nobody knows, or that was closed when the interpreter left, has no work to wait for.
                queues = [queue for queue in map(self._queues.get, handles) if queue is not None]
                marks = [(queue, tick) for queue in queues if (tick := _signal(queue))]
            except BaseException:
                self._unmarked.appendleft(first)
                raise
            self._line_up(token, marks)

    def _line_up(self, token: int, marks: list[tuple[Queue, int]]) -> None:
        if marks:
            self._pending.setdefault(marks[-1][0].handle, deque()).append((token, marks))
        else:
            self.settle(token)

    # The rungs.

    def _grow(self, nbytes: int, queue: int) -> bool:
        size, small = self.segment_size(nbytes)
        try:
            address = self.port.reserve(size)
        except OutOfMemory:
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
        return out_of_memory.explain(self, self.name, nbytes, queue, free, total)

    def empty(self) -> None:
        """Give every wholly free segment back to the port, once no queue can still be at work in it."""
        self.num_sync_all_streams += 1
        self._mark()
        for line in tuple(self._pending.values()):
            self._wait_out(line)
        for address, _ in self.evictable():
            if address not in self._inherited and self.evict(address):
                self._leaving.append(address)
        self._release()

    def _wait_out(self, line: deque[_Waiting]) -> None:
        while (first := _pop(line)) is not None:
            token, marks = first
            try:
                for queue, tick in marks:
                    self._wait(queue, tick)
            except WrongState:  # this is that queue's own thread
                line.appendleft(first)
                return
            except BaseException:
                line.appendleft(first)
                raise
            self.settle(token)

    def _release(self) -> None:
        """A block is free in its queue's order, so work on it may still be queued; a port does not watch for that."""
        mine: deque[int] = deque()
        try:
            while (address := _pop(self._leaving)) is not None:
                mine.append(address)
            for queue in tuple(self._queues.values()) if mine else ():
                if not queue.idle():
                    self._wait(queue, queue.signal())
            while mine:
                address = mine.popleft()
                try:
                    self.port.release(address)
                except DeviceError:
                    mine.append(address)
                    raise
                self.num_device_free += 1
        except WrongState:  # this is a queue's own thread, which cannot wait for itself: the next to come releases them
            pass
        finally:
            self._leaving.extend(mine)

    def _wait(self, queue: Queue, tick: int) -> None:
        try:
            queue.wait(tick)
        except DeviceError as failure:
            if queue.reached() < tick:
                raise
            self.failures.setdefault(queue.handle, failure.with_traceback(None))

    def abandon_queues(self, port: Port) -> None:
        """In a forked child: nothing waits any more, and new memory comes from the port.

        What the pool has is the child's own copy. It stays until the child ends, as it is not the port's to release.
        """
        self.port = port
        self._queues = {}
        self._leaving.clear()
        self._inherited = frozenset(np.frombuffer(self.tables(trace=False)[0], SEGMENT)["address"].tolist())
        self._unmarked.extend(self.deferred())
        waiting = [token for line in self._pending.values() for token, _ in line]
        self._pending.clear()
        for token in (*waiting, *(token for token, _ in self._unmarked)):
            self.settle(token)
        self._unmarked.clear()
        self.waiting = False


def _pop(items: deque[_T]) -> _T | None:
    """The first, now this thread's alone; None when there is none (left)."""
    try:
        return items.popleft()
    except IndexError:
        return None


def _signal(queue: Queue) -> int:
    """The tick behind all that is queued; 0 for a queue that was closed."""
    try:
        return queue.signal()
    except WrongState:
        return 0
