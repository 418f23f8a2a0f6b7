"""Frees, during graph captures, of blocks that several queues use.

# Note [Captured frees]
Nothing that is captured is executed, so no tick tells when the queues are done with a block that is freed during a
capture: the graph may use it in every replay. As in PyTorch it stays pending until the first allocation outside a
capture. With the setting `graph_capture_record_stream_reuse`, an allocation of the same capture reuses it once the
block's last use on each stream precedes everything that the stream captures next (`CapturedGraph.precedes`). A block
leaves this table only after it is freed or in the next one: Note [Deferred frees]. Rejected: ticks of the capture,
which a queue that is not capturing never reaches.
Test: tests/runtime/allocator/test_captured_frees.py::test_allocation_outside_the_capture_does_not_release_its_blocks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from forebay.errors import DeviceError
from forebay.runtime.base.deferred_frees import Ticks, ticks_of
from forebay.runtime.base.queue_capabilities import can_capture
from forebay.spi import CapturedGraph, Queue

__all__ = ["CapturedFrees"]


class _Pending(NamedTuple):
    """A freed block."""

    queue: int  # for which it was allocated
    ticks: Ticks  # of the work that was queued on its users before the free and is executed
    pool_number: int
    capture: Mapping[int, int] | None  # the queues of the capture whose work on several queues uses it
    recording: CapturedGraph | None  # of that capture
    last_uses: tuple[int, ...]  # ticks of that capture


class CapturedFrees:
    """The pending frees of captures, by token, oldest first."""

    def __init__(self) -> None:
        self._pending: dict[int, _Pending] = {}

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(
        self,
        token: int,
        queue: Queue | None,
        users: list[Queue],
        pool_number: int,
        captures: Sequence[Mapping[int, int]],
        *,
        reuse: bool,
    ) -> None:
        """Add a block of `queue`, which `users` use. `captures` are the queues of each active capture."""
        joined = next((queues for queues in captures if queue is not None and queue.handle in queues), None)
        captured = [user for user in users if joined is not None and user.handle in joined]
        handle = 0 if queue is None else queue.handle
        if queue is None or not captured:
            self._pending[token] = _Pending(handle, ticks_of(users), pool_number, None, None, ())
            return
        recording = queue.capture if reuse and len(captured) == len(users) and can_capture(queue) else None
        last_uses: tuple[int, ...] = ()
        if recording is not None and recording.work:
            with suppress(DeviceError):  # the capture was invalidated
                last_uses = tuple(each.signal() for each in (queue, *users))
        self._pending[token] = _Pending(handle, ticks_of(users), pool_number, joined, recording, last_uses)

    def completed(self, append: Callable[[int, Ticks, int], bool]) -> Iterator[int]:
        """Yield the blocks that no capture and no queue uses.

        Those that queues use are passed to `append`, which returns False if there are no ticks to wait for.
        """
        for token, block in tuple(self._pending.items()):
            if block.capture is not None and block.queue in block.capture:
                continue  # the capture is active: its queues are not joined yet
            if not append(token, block.ticks, block.pool_number):
                yield token
            self._pending.pop(token, None)

    def reusable(self, queue: Queue) -> Iterator[int]:
        """Yield the blocks of a capturing queue whose last uses precede everything that the queue captures next."""
        for token, block in tuple(self._pending.items()):
            if block.queue != queue.handle or not block.last_uses or block.recording is None:
                continue
            joined = all(block.recording.precedes(tick, queue) for tick in block.last_uses)
            if joined and all(user.reached() >= tick for user, tick in block.ticks):
                yield token
                self._pending.pop(token, None)

    def drain(self) -> list[int]:
        """Remove and return all blocks, in a forked child without queues."""
        tokens = list(self._pending)
        self._pending.clear()
        return tokens
