"""Who is told before an OutOfMemory is raised on any device of a kind, those that are opened later included."""

from __future__ import annotations

from collections.abc import Iterable

from forebay.runtime.allocator.caching_allocator import Allocator, Observer

__all__ = ["attach", "follow", "forget_kind"]

_of_kind: dict[str, list[Observer]] = {}


def attach(kind: str, observer: Observer, opened: Iterable[Allocator]) -> None:
    """`opened` are the allocators of the kind's devices that are open now."""
    _of_kind.setdefault(kind, []).append(observer)
    for allocator in opened:
        allocator.observers.append(observer)


def follow(kind: str, allocator: Allocator) -> None:
    """A device of the kind was opened."""
    allocator.observers += _of_kind.get(kind, ())


def forget_kind(kind: str) -> None:
    """Its emulation has ended."""
    _of_kind.pop(kind, None)
