"""Blocks that were given back while other queues still use them: free once those queues have passed that point.

A destructor, a signal handler or another thread may come in between anywhere, so nobody waits under a lock, and a block
leaves one list only when it stands in the next: to stand in two, or to be settled twice, does no harm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TypeVar

from penstock.errors import WrongState
from penstock.spi import Queue

__all__ = ["WaitingBlocks"]

_T = TypeVar("_T")
_Marks = list[tuple[Queue, int]]  # queues, and the ticks they must reach


class WaitingBlocks:
    """Tokens of a pool's blocks, each with the ticks it waits for; `settle(token)` frees one, once."""

    def __init__(self, queues: Mapping[int, Queue], settle: Callable[[int], object]) -> None:
        self._queues = queues
        self._settle = settle
        self._unmarked: deque[tuple[int, list[int]]] = deque()  # given back, with the handles of those who use them
        self._lines: dict[int, deque[tuple[int, _Marks]]] = {}  # by the queue that is waited for first

    def __bool__(self) -> bool:
        return bool(self._unmarked) or any(self._lines.values())

    def add(self, deferred: list[tuple[int, list[int]]]) -> None:
        self._unmarked.extend(deferred)

    def mark(self) -> None:
        """Remember how far the queues must come for each block that was given back."""
        while (first := _first(self._unmarked)) is not None:
            token, handles = first
            # A queue that nobody knows, or that was closed, has no work to wait for.
            queues = [queue for queue in map(self._queues.get, handles) if queue is not None]
            self._line_up(token, [(queue, tick) for queue in queues if (tick := _signal(queue))])
            _remove(self._unmarked, first)

    def settle_reached(self) -> None:
        """Free what its queues are done with. Looks at the first of each line only: a queue reaches ticks in order."""
        self.mark()
        for line in tuple(self._lines.values()):
            while (first := _first(line)) is not None:
                token, marks = first
                left = [(queue, tick) for queue, tick in marks if queue.reached() < tick]
                if marks[-1] in left:
                    break
                self._line_up(token, left)
                _remove(line, first)

    def marks(self) -> Iterator[tuple[Queue, int]]:
        """All that is waited for now."""
        for line in tuple(self._lines.values()):
            for _, marks in tuple(line):
                yield from marks

    def forget_queues(self) -> None:
        """They are closed: who is given back from now on waits for none."""
        self._queues = {}

    def settle_all(self) -> None:
        """For a forked child, whose queues are gone: nothing waits any more."""
        tokens = [token for line in self._lines.values() for token, _ in line] + [token for token, _ in self._unmarked]
        for token in tokens:
            self._settle(token)
        self._lines.clear()
        self._unmarked.clear()

    def _line_up(self, token: int, marks: _Marks) -> None:
        if marks:
            self._lines.setdefault(marks[-1][0].handle, deque()).append((token, marks))
        else:
            self._settle(token)


def _first(items: deque[_T]) -> _T | None:
    try:
        return items[0]
    except IndexError:
        return None


def _remove(items: deque[_T], item: _T) -> None:
    with suppress(ValueError):  # another thread was quicker
        items.remove(item)


def _signal(queue: Queue) -> int:
    """The tick behind all that is queued; 0 for a queue that was closed."""
    try:
        return queue.signal()
    except WrongState:
        return 0
