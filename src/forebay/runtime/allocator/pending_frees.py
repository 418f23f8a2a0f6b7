"""Blocks that were given back while other queues still use them: free once those queues have passed that point.

A destructor, a signal handler or another thread may come in between anywhere, so nobody waits under a lock, and a block
leaves one list only when it stands in the next: to stand in two, or to be settled twice, does no harm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Protocol, TypeVar

from forebay.errors import WrongState
from forebay.runtime.base import capture_state
from forebay.spi import Queue

__all__ = ["Order", "WaitingBlocks"]

_T = TypeVar("_T")
_Deferred = tuple[int, list[int], int]  # a block's token, the handles of those who use it, its home


class Order(Protocol[_T]):
    """A set whose members are visited in its own order."""

    def __iter__(self) -> Iterator[_T]: ...
    def add(self, member: _T, /) -> object: ...
    def discard(self, member: _T, /) -> object: ...


class WaitingBlocks:
    """Tokens of a pool's blocks, each in a line of every queue it waits for; `settle(token)` frees one, once."""

    def __init__(
        self, queues: Mapping[int, Queue], settle: Callable[[int], object], order: Callable[[], Order[int]] = set[int]
    ) -> None:
        self._queues = queues
        self._settle = settle
        self._unmarked: deque[_Deferred] = deque()  # given back, and no queue was asked yet
        self._lines: dict[int, deque[tuple[int, int]]] = {}  # of each queue: tokens, and the ticks they wait for
        self._missing: dict[int, set[int]] = {}  # of each token: the queues it still waits for
        self._homes: dict[int, int] = {}
        self._new_order = order
        self._order = order()  # of queues with a line

    def __bool__(self) -> bool:
        return bool(self._unmarked) or any(self._lines.values())

    def add(self, deferred: list[_Deferred]) -> None:
        self._unmarked.extend(deferred)

    def mark(self) -> None:
        """Remember how far the queues must come for each block that was given back."""
        while (first := _first(self._unmarked)) is not None:
            token, handles, home = first
            missing = self._missing[token] = set(handles)
            self._homes[token] = home
            for handle in self._sorted(handles):
                # A queue that nobody knows, or that was closed, has no work to wait for.
                queue = self._queues.get(handle)
                if queue is not None and (tick := _signal(queue)):
                    self._lines.setdefault(handle, deque()).append((token, tick))
                    self._order.add(handle)
                else:
                    missing.discard(handle)
            self._settle_if_done(token)
            _remove(self._unmarked, first)

    def settle_reached(self) -> None:
        """Free what its queues are done with. Looks at the first of each line only: a queue reaches ticks in order."""
        self.mark()
        for handle in self._visited():
            line, queue = self._lines.get(handle), self._queues.get(handle)
            while line and (first := _first(line)) is not None:
                token, tick = first
                if queue is not None and queue.reached() < tick:
                    break
                self._missing.get(token, set()).discard(handle)
                self._settle_if_done(token)
                _remove(line, first)
            self._leave_order(handle, line)

    def wait_out(self, wait: Callable[[Queue, int], bool], home: int | None = None) -> None:
        """Free all, or all of a home, after waiting: `wait` tells whether the queue has reached the tick then."""
        self.mark()
        for handle in self._visited():
            line, queue = self._lines.get(handle, deque()), self._queues.get(handle)
            for entry in tuple(line):
                token, tick = entry
                if home in (None, self._homes.get(token)) and (queue is None or wait(queue, tick)):
                    self._missing.get(token, set()).discard(handle)
                    self._settle_if_done(token)
                    _remove(line, entry)
            self._leave_order(handle, line)

    def _visited(self) -> list[int]:
        """Queues with a line. Where another thread was busy with the same one, the order may have lost it."""
        ordered = [*self._order]
        return ordered + [handle for handle in tuple(self._lines) if self._lines.get(handle) and handle not in ordered]

    def forget_queues(self) -> None:
        """They are closed: who is given back from now on waits for none."""
        self._queues = {}

    def settle_all(self) -> None:
        """For a forked child, whose queues are gone: nothing waits any more."""
        tokens = [*self._missing, *(token for token, *_ in self._unmarked)]
        self._lines.clear()
        self._unmarked.clear()
        self._missing.clear()
        self._homes.clear()
        self._order = self._new_order()
        for token in tokens:
            self._settle(token)

    def _leave_order(self, handle: int, line: deque[tuple[int, int]] | None) -> None:
        if not line:
            self._order.discard(handle)
            if self._lines.get(handle):  # somebody joined it between the look and the discard
                self._order.add(handle)

    def _settle_if_done(self, token: int) -> None:
        if not self._missing.get(token):
            self._settle(token)
            self._missing.pop(token, None)
            self._homes.pop(token, None)

    def _sorted(self, handles: Iterable[int]) -> Iterable[int]:
        order = self._new_order()
        for handle in handles:
            order.add(handle)
        return order


def _first(items: deque[_T]) -> _T | None:
    try:
        return items[0]
    except IndexError:
        return None


def _remove(items: deque[_T], item: _T) -> None:
    with suppress(ValueError):  # another thread was quicker
        items.remove(item)


def _signal(queue: Queue) -> int:
    """The tick behind all that is queued; 0 for a queue that was closed. What a graph records, nobody waits for."""
    try:
        return capture_state.signal(queue)
    except WrongState:
        return 0
