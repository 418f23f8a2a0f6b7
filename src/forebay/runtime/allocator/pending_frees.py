"""Deferred frees: blocks that were freed while other queues still used them (PyTorch: active_pending_free).

A block becomes free once those queues have completed the work queued before the free. No method waits while holding a
lock, and a block is removed from one list only after it is in the next, because a destructor, a signal handler or
another thread may run between any two statements. A block in two lists, or completed twice, is harmless.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Protocol, TypeVar

from forebay.errors import WrongState
from forebay.runtime.base import capture_state
from forebay.spi import Queue

__all__ = ["OrderedSet", "PendingFrees"]

_T = TypeVar("_T")
_Deferred = tuple[int, list[int], int]  # a block's token, the handles of the queues that use it, its pool


class OrderedSet(Protocol[_T]):
    """A set with an iteration order of its own."""

    def __iter__(self) -> Iterator[_T]: ...
    def add(self, member: _T, /) -> object: ...
    def discard(self, member: _T, /) -> object: ...


class PendingFrees:
    """Tokens of freed blocks in one FIFO per queue that they wait for; `complete_free(token)` frees a block once."""

    def __init__(
        self,
        queues: Mapping[int, Queue],
        complete_free: Callable[[int], object],
        order: Callable[[], OrderedSet[int]] = set[int],
    ) -> None:
        self._queues = queues
        self._complete_free = complete_free
        self._unmarked: deque[_Deferred] = deque()  # freed, but no queue was signalled yet
        self._fifos: dict[int, deque[tuple[int, int]]] = {}  # by queue: tokens and the ticks they wait for
        self._remaining: dict[int, set[int]] = {}  # by token: the queues it still waits for
        self._partitions: dict[int, int] = {}
        self._new_order = order
        self._order = order()  # queues with a FIFO

    def __bool__(self) -> bool:
        return bool(self._unmarked) or any(self._fifos.values())

    def add(self, deferred: list[_Deferred]) -> None:
        self._unmarked.extend(deferred)

    def mark(self) -> None:
        """Signal the queues of each added block and store the ticks that they must reach."""
        while (first := _first(self._unmarked)) is not None:
            token, handles, partition = first
            remaining = self._remaining[token] = set(handles)
            self._partitions[token] = partition
            for handle in self._sorted(handles):
                # An unknown or closed queue has no work to wait for.
                queue = self._queues.get(handle)
                if queue is not None and (tick := _signal(queue)):
                    self._fifos.setdefault(handle, deque()).append((token, tick))
                    self._order.add(handle)
                else:
                    remaining.discard(handle)
            self._complete_if_done(token)
            _remove(self._unmarked, first)

    def complete_reached(self) -> None:
        """Free the blocks whose queues are done. Polls only the head of each FIFO, as ticks are reached in order."""
        self.mark()
        for handle in self._visited():
            fifo, queue = self._fifos.get(handle), self._queues.get(handle)
            while fifo and (first := _first(fifo)) is not None:
                token, tick = first
                if queue is not None and queue.reached() < tick:
                    break
                self._remaining.get(token, set()).discard(handle)
                self._complete_if_done(token)
                _remove(fifo, first)
            self._update_order(handle, fifo)

    def wait_and_complete(self, wait: Callable[[Queue, int], bool], partition: int | None = None) -> None:
        """Wait for and free all pending blocks, or those of one pool.

        `wait(queue, tick)` returns True if the queue has reached the tick when it returns.
        """
        self.mark()
        for handle in self._visited():
            fifo, queue = self._fifos.get(handle, deque()), self._queues.get(handle)
            for entry in tuple(fifo):
                token, tick = entry
                if partition in (None, self._partitions.get(token)) and (queue is None or wait(queue, tick)):
                    self._remaining.get(token, set()).discard(handle)
                    self._complete_if_done(token)
                    _remove(fifo, entry)
            self._update_order(handle, fifo)

    def _visited(self) -> list[int]:
        """Return the queues with a FIFO in order, then those that `_order` lost in a race between threads."""
        ordered = [*self._order]
        return ordered + [handle for handle in tuple(self._fifos) if self._fifos.get(handle) and handle not in ordered]

    def detach_queues(self) -> None:
        """Detach the queues, which are closed; blocks freed from now on wait for none."""
        self._queues = {}

    def complete_all(self) -> None:
        """Free all pending blocks at once, in a forked child without queues."""
        tokens = [*self._remaining, *(token for token, *_ in self._unmarked)]
        self._fifos.clear()
        self._unmarked.clear()
        self._remaining.clear()
        self._partitions.clear()
        self._order = self._new_order()
        for token in tokens:
            self._complete_free(token)

    def _update_order(self, handle: int, fifo: deque[tuple[int, int]] | None) -> None:
        """Remove the queue from `_order` if its FIFO is empty."""
        if not fifo:
            self._order.discard(handle)
            if self._fifos.get(handle):  # an entry was added between the check and the discard
                self._order.add(handle)

    def _complete_if_done(self, token: int) -> None:
        if not self._remaining.get(token):
            self._complete_free(token)
            self._remaining.pop(token, None)
            self._partitions.pop(token, None)

    def _sorted(self, handles: Iterable[int]) -> Iterable[int]:
        order = self._new_order()
        for handle in handles:
            order.add(handle)
        return order


def _first(items: deque[_T]) -> _T | None:
    try:
        return items[0] if items else None
    except IndexError:  # another thread emptied it in between
        return None


def _remove(items: deque[_T], item: _T) -> None:
    with suppress(ValueError):  # removed by another thread
        items.remove(item)


def _signal(queue: Queue) -> int:
    """Return the tick after all queued work; 0 for a closed queue. Work recorded by a graph capture is excluded."""
    try:
        return capture_state.signal(queue)
    except WrongState:
        return 0
