"""Stream-ordered deferred frees: items that queued work still uses are freed once its queues have completed the work.

Three tables use it: freed blocks of a device allocator (PyTorch: active_pending_free), freed pinned host blocks, and
objects that queued copies read or write.

# Note [Deferred frees]
Queued work uses memory after the program has dropped it. A freed item therefore waits until each queue that uses it has
reached the tick of its last use there. No method holds a lock, as a destructor, a signal handler or another thread may
run between any two statements: it could wait for a lock that its own thread holds. Instead an item enters the next
list before it leaves the previous one. It may thus be yielded twice, and freeing it must be idempotent. Ticks are
reached in order, so only the head of each FIFO is polled. Rejected: taking an item out first, which loses it if a
handler raises before it is stored again.
Test: tests/runtime/allocator/test_segment_allocator.py::test_no_memory_is_lost_whichever_call_fails
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from forebay.errors import Forked, WrongState
from forebay.runtime.base import capture_state
from forebay.spi import Queue

__all__ = ["DeferredFrees", "KeepAlive", "OrderedSet", "Ticks", "ticks_of"]

_T = TypeVar("_T")
_Freed = tuple[_T, Sequence[Queue], int]  # an item, the queues that use it, the pool that it belongs to
Ticks = list[tuple[Queue, int]]  # that an item waits for


class OrderedSet(Protocol[_T]):
    """A set with a defined iteration order."""

    def __iter__(self) -> Iterator[_T]: ...
    def add(self, member: _T, /) -> object: ...
    def discard(self, member: _T, /) -> object: ...


class _Entry(Generic[_T]):
    """An item in the FIFO of one queue, and the tick of that queue that it waits for."""

    __slots__ = ("item", "pool_number", "queue", "remaining", "tick")

    def __init__(self, item: _T, queue: Queue, tick: int | None, remaining: set[int], pool_number: int = 0) -> None:
        self.item: _T = item
        self.queue: Queue = queue
        self.tick: int | None = tick  # None while work that uses the item is being queued
        # Identities of the queues that the item waits for; shared by all of its entries.
        self.remaining: set[int] = remaining
        self.pool_number: int = pool_number


class KeepAlive(_Entry[tuple[object, ...]]):
    """Context manager: objects stay alive until the work that is queued inside it has completed."""

    __slots__ = ("ended",)
    tick: int | None

    def __init__(self, objects: tuple[object, ...], queue: Queue) -> None:
        super().__init__(objects, queue, None, {id(queue)})
        self.ended: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.ended = True  # before the signal, which may fail
        self.tick = capture_state.signal(self.queue)


class DeferredFrees(Generic[_T]):
    """Items in one FIFO for each queue, or in one FIFO for all, ordered by the ticks that they wait for.

    The iterators yield each item that can be freed, and remove it when the next one is requested: an item whose free
    was interrupted is yielded again. `order` creates the set of FIFOs, whose iteration order is the order in which they
    are visited. With `one_fifo`, items are freed in the order of `add` across all queues: Note [Pinned frees are in one
    order].
    """

    def __init__(self, order: Callable[[], OrderedSet[int]] = set[int], *, one_fifo: bool = False) -> None:
        self._unmarked: deque[_Freed[_T]] = deque()  # added, but the ticks of their queues are not known yet
        self.fifos: dict[int, deque[_Entry[_T]]] = {}  # by handle of the queue; those of idle queues may be empty
        self._new_order = order
        self._order = order()  # keys of FIFOs that are not empty
        self._one_fifo = one_fifo
        self._detached = False

    def __bool__(self) -> bool:
        return bool(self._unmarked) or any(self.fifos.values())

    def add(self, freed: Iterable[_Freed[_T]]) -> None:
        """Add items with the queues that use them. `mark` must follow."""
        self._unmarked.extend(freed)

    def mark(self) -> Iterator[_T]:
        """Signal the queues of each added item and store the ticks. Yields items whose queues are all closed."""
        while (first := _first(self._unmarked)) is not None:
            item, queues, pool_number = first
            if not self.append(item, ticks_of(queues), pool_number):
                yield item
            _remove(self._unmarked, first)

    def append(self, item: _T, ticks: Ticks, pool_number: int) -> bool:
        """Add an item that waits for ticks; return False if there are none."""
        remaining = {id(queue) for queue, _ in ticks}
        for queue, tick in ticks:
            self._append(_Entry(item, queue, tick, remaining, pool_number))
        return bool(ticks)

    def keep_alive(self: DeferredFrees[tuple[object, ...]], queue: Queue, objects: tuple[object, ...]) -> KeepAlive:
        """Return a context manager: the objects wait for the work queued inside it, even if an exception interrupts."""
        entry = KeepAlive(objects, queue)
        self._append(entry)
        return entry

    def reached(self) -> Iterator[_T]:
        """Yield the items whose queues are done. Polls only the head of each FIFO, as ticks are reached in order."""
        yield from self.mark()
        for key in self._visited():
            yield from self._pop_reached(key)

    def discard_reached(self, queue: Queue) -> None:
        """Drop the items that waited for this queue only and whose tick it has reached."""
        if fifo := self.fifos.get(queue.handle):
            reached = queue.reached()
            while (entry := _first(fifo)) is not None and (tick := _tick_of(entry)) is not None and tick <= reached:
                _remove(fifo, entry)

    def wait(self, wait: Callable[[Queue, int], bool], pool_number: int | None = None) -> Iterator[_T]:
        """Wait for all items, or those of one pool, and yield them.

        `wait(queue, tick)` returns True if the queue has reached the tick when it returns.
        """
        yield from self.mark()
        for key in self._visited():
            fifo = self.fifos.get(key, deque())
            for entry in tuple(fifo):
                if pool_number in (None, entry.pool_number) and (self._is_reached(entry) or _wait_for(entry, wait)):
                    yield from self._pop(fifo, entry)
            self._update_order(key, fifo)

    def drain(self) -> list[_T]:
        """Remove and return all items, in a forked child without queues."""
        items = [
            *(entry.item for fifo in self.fifos.values() for entry in fifo),
            *(item for item, *_ in self._unmarked),
        ]
        self.fifos.clear()
        self._unmarked.clear()
        self._order = self._new_order()
        return items

    def detach(self) -> None:
        """Stop polling the queues, which are closed: every item counts as reached."""
        self._detached = True

    def _append(self, entry: _Entry[_T]) -> None:
        key = 0 if self._one_fifo else entry.queue.handle
        fifo = self.fifos.get(key)
        if fifo is None:
            fifo = self.fifos.setdefault(key, deque())
        fifo.append(entry)
        self._order.add(key)

    def _is_reached(self, entry: _Entry[_T]) -> bool:
        return self._detached or ((tick := _tick_of(entry)) is not None and entry.queue.reached() >= tick)

    def _pop_reached(self, key: int) -> Iterator[_T]:
        fifo = self.fifos.get(key, deque())
        while (entry := _first(fifo)) is not None and self._is_reached(entry):
            yield from self._pop(fifo, entry)
        self._update_order(key, fifo)

    def _pop(self, fifo: deque[_Entry[_T]], entry: _Entry[_T]) -> Iterator[_T]:
        entry.remaining.discard(id(entry.queue))
        if not entry.remaining:
            yield entry.item
        _remove(fifo, entry)

    def _visited(self) -> list[int]:
        """Return the keys of the FIFOs in order, then those that `_order` lost in a race between threads."""
        ordered = [*self._order]
        return ordered + [key for key in tuple(self.fifos) if self.fifos.get(key) and key not in ordered]

    def _update_order(self, key: int, fifo: deque[_Entry[_T]]) -> None:
        """Remove the FIFO from `_order` if it is empty."""
        if not fifo:
            self._order.discard(key)
            if self.fifos.get(key):  # an entry was added between the check and the discard
                self._order.add(key)


def _wait_for(entry: _Entry[Any], wait: Callable[[Queue, int], bool]) -> bool:
    return (tick := _tick_of(entry)) is not None and wait(entry.queue, tick)


def _tick_of(entry: _Entry[Any]) -> int | None:
    """Return the tick that an entry waits for; a later one if it could not be signalled behind the work."""
    if entry.tick is None and isinstance(entry, KeepAlive) and entry.ended:
        entry.tick = _signal(entry.queue)
    return entry.tick


def _first(items: deque[Any]) -> Any:
    try:
        return items[0] if items else None
    except IndexError:  # another thread emptied it in between
        return None


def _remove(items: deque[_T], item: _T) -> None:
    try:  # noqa: SIM105 -- twice as fast as suppress
        items.remove(item)
    except ValueError:  # removed by another thread
        pass


def ticks_of(queues: Iterable[Queue]) -> Ticks:
    """Return the tick of each queue after all queued work, without queues that are closed.

    A capturing queue has the tick before its capture, if there is one.
    """
    return [(queue, tick) for queue in queues if (tick := _signal(queue))]


def _signal(queue: Queue) -> int:
    """Return the tick after all queued work; 0 for a queue that is closed or was inherited by a fork.

    Work recorded by a graph capture is excluded.
    """
    try:
        return capture_state.signal(queue)
    except (WrongState, Forked):
        return 0
