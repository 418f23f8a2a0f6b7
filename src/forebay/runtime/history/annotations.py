"""What a program says of itself while a history is recorded: metadata, a compile context, annotations.

Metadata and context belong to a thread, and every entry of the history carries those of its moment.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from forebay.runtime.allocator.caching_allocator import Allocator

__all__ = ["Labels", "annotate", "compile_context", "listen", "mark", "metadata", "metadata_for_now", "set_metadata"]


class _Said(threading.local):
    metadata = ""
    contexts: tuple[str, ...] = ()


_said = _Said()
_listening: WeakSet[Allocator] = WeakSet()  # allocators whose recording may want to know
_anything_said = False


class Labels:
    """One recording's: what its entries' notes mean, and its annotations."""

    def __init__(self, *, contexts: bool = False, annotations: bool = False, most: int = 0) -> None:
        self._contexts = contexts
        self._table: list[tuple[str, str]] = [("", "")]
        self._numbers = {("", ""): 0}
        self.annotations: deque[dict[str, Any]] | None = deque(maxlen=most) if annotations else None

    def number(self) -> int:
        """The note of an entry made here and now."""
        context = _said.contexts[-1] if self._contexts and _said.contexts else ""
        said = (context, _said.metadata)
        if (known := self._numbers.get(said)) is not None:
            return known
        end = len(self._table)
        self._table.append(said)  # there, or behind what another thread says now
        return self._numbers.setdefault(said, self._table.index(said, end))

    def table(self) -> tuple[tuple[str, str], ...]:
        return tuple(self._table[1:])


def listen(allocator: Allocator) -> None:
    """The allocator records from now on: it hears of what is said."""
    _listening.add(allocator)
    allocator.noting = _anything_said


def set_metadata(said: str | Mapping[str, Any]) -> None:
    """What this thread's entries say from now on; a mapping becomes compact JSON."""
    _said.metadata = said if isinstance(said, str) else json.dumps(said, separators=(",", ":"))
    _something_said()


def metadata() -> str:
    return _said.metadata


@contextmanager
def metadata_for_now(said: str) -> Iterator[None]:
    before = _said.metadata
    set_metadata(said)
    try:
        yield
    finally:
        _said.metadata = before


@contextmanager
def compile_context(name: str) -> Iterator[None]:
    """Entries made by this thread meanwhile name it, where a recording asked for that."""
    before = _said.contexts
    _said.contexts = (*before, name)
    _something_said()
    try:
        yield
    finally:
        _said.contexts = before


@contextmanager
def annotate(name: str, **details: str) -> Iterator[None]:
    """A span of time with a name, beside the history of every device whose recording asked for annotations."""
    mark(name, "START", details)
    try:
        yield
    finally:
        mark(name, "END", details)


def mark(name: str, stage: str, details: Mapping[str, str] = MappingProxyType({})) -> None:
    """One end of a span, "START" or "END"."""
    if not _listening:
        return
    said = {**details, "stage": stage, "name": name, "time_us": time.time_ns() // 1000}
    for allocator in tuple(_listening):
        if (marks := allocator.labels.annotations) is not None:
            marks.append({**said, "device": allocator.port.props.index})


def _something_said() -> None:
    global _anything_said  # noqa: PLW0603 -- until then no recording pays for it
    _anything_said = True
    for allocator in tuple(_listening):
        allocator.noting = True
