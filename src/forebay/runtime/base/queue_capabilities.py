"""Optional abilities of queues, cached per queue class: an isinstance check of a protocol takes microseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from forebay.spi import Captures, Launches, LazilyBacked, Queue

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    class _Capturing(Queue, Captures, Protocol): ...

    class _Foreseeing(Queue, LazilyBacked, Protocol): ...

    class _Launching(Queue, Launches, Protocol): ...


__all__ = ["can_capture", "can_foresee", "can_launch"]

_cache: dict[tuple[type, type], bool] = {}  # by class and ability


def can_capture(queue: Queue) -> TypeIs[_Capturing]:
    """Return True if the queue can capture graphs."""
    return _has(queue, Captures)


def can_foresee(queue: Queue) -> TypeIs[_Foreseeing]:
    """Return True if the queue can foresee that memory for a write will be missing."""
    return _has(queue, LazilyBacked)


def can_launch(queue: Queue) -> TypeIs[_Launching]:
    """Return True if the queue can run Python functions."""
    return _has(queue, Launches)


def _has(queue: Queue, ability: type) -> bool:
    key = type(queue), ability
    known = _cache.get(key)
    if known is None:
        known = _cache[key] = isinstance(queue, ability)
    return known
