"""What a queue can do, asked once for each class of queues: to ask a protocol takes microseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from forebay.spi import Captures, Foresees, Launches, Queue

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    class _Capturing(Queue, Captures, Protocol): ...

    class _Foreseeing(Queue, Foresees, Protocol): ...

    class _Launching(Queue, Launches, Protocol): ...


__all__ = ["captures", "foresees", "launches"]

_able: dict[tuple[type, type], bool] = {}  # by class and ability


def captures(queue: Queue) -> TypeIs[_Capturing]:
    """Whether it records graphs."""
    return _has(queue, Captures)


def foresees(queue: Queue) -> TypeIs[_Foreseeing]:
    """Whether it knows that what it is to write will find no memory."""
    return _has(queue, Foresees)


def launches(queue: Queue) -> TypeIs[_Launching]:
    """Whether it runs functions."""
    return _has(queue, Launches)


def _has(queue: Queue, ability: type) -> bool:
    asked = type(queue), ability
    known = _able.get(asked)
    if known is None:
        known = _able[asked] = isinstance(queue, ability)
    return known
