"""Observers of OutOfMemory errors per device kind, including devices opened later."""

from __future__ import annotations

from collections.abc import Iterable

from forebay.runtime.allocator.caching_allocator import Allocator, OutOfMemoryObserver

__all__ = ["attach", "attach_all", "reset_kind"]

_by_kind: dict[str, list[OutOfMemoryObserver]] = {}


def attach(kind: str, observer: OutOfMemoryObserver, opened: Iterable[Allocator]) -> None:
    """Attach an observer to the kind's open allocators, `opened`, and to all that are opened later."""
    _by_kind.setdefault(kind, []).append(observer)
    for allocator in opened:
        allocator.oom_observers.append(observer)


def attach_all(kind: str, allocator: Allocator) -> None:
    """Attach the kind's observers to the allocator of a newly opened device."""
    allocator.oom_observers += _by_kind.get(kind, ())


def reset_kind(kind: str) -> None:
    """Drop the kind's observers when its emulation ends."""
    _by_kind.pop(kind, None)
