"""Optional abilities of queues, cached per queue class: an isinstance check of a protocol takes microseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from forebay.spi import Captures, Launches, LazilyBacked, Queue, StridedCopies

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    class _CapturingQueue(Queue, Captures, Protocol): ...

    class _LazilyBackedQueue(Queue, LazilyBacked, Protocol): ...

    class LaunchingQueue(Queue, Launches, Protocol): ...

    class StridedCopyQueue(Queue, StridedCopies, Protocol): ...


__all__ = ["can_capture", "can_copy_strided", "can_launch", "is_lazily_backed"]

_cache: dict[tuple[type, type], bool] = {}  # by class and ability


def can_capture(queue: Queue) -> TypeIs[_CapturingQueue]:
    """Return True if the queue can capture graphs."""
    return _has(queue, Captures)


def is_lazily_backed(queue: Queue) -> TypeIs[_LazilyBackedQueue]:
    """Return True if the queue's memory may be unbacked (ability `LazilyBacked`)."""
    return _has(queue, LazilyBacked)


def can_launch(queue: Queue) -> TypeIs[LaunchingQueue]:
    """Return True if the queue can run Python functions."""
    return _has(queue, Launches)


def can_copy_strided(queue: Queue) -> TypeIs[StridedCopyQueue]:
    """Return True if the queue can copy between strided layouts, convert elements and fill with any element."""
    return _has(queue, StridedCopies)


def _has(queue: Queue, ability: type) -> bool:
    key = type(queue), ability
    known = _cache.get(key)
    if known is None:
        known = _cache[key] = isinstance(queue, ability)
    return known
