"""User annotations of the memory history: metadata, compile context and named spans.

Metadata and compile context are per thread; each history entry has the values at the time it was made.
"""

from __future__ import annotations

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

__all__ = [
    "Labels",
    "add_annotation",
    "annotate",
    "compile_context",
    "metadata",
    "register",
    "set_metadata",
    "temporary_metadata",
]


class _ThreadState(threading.local):
    metadata = ""
    contexts: tuple[str, ...] = ()


_thread_state = _ThreadState()
_allocators: WeakSet[Allocator] = WeakSet()  # that record, or have recorded
_annotated = False  # whether the program has ever set metadata or a context


class Labels:
    """Labels of one recording: pairs of compile context and metadata by number, and the list of span annotations."""

    def __init__(self, *, contexts: bool = False, annotations: bool = False, most: int = 0) -> None:
        self.starts = 0  # how often the recording was started or changed
        self._contexts = contexts
        self._table: list[tuple[str, str]] = [("", "")]
        self._numbers = {("", ""): 0}
        self.annotations: deque[dict[str, Any]] | None = deque(maxlen=most) if annotations else None

    def current_number(self) -> int:
        """Return the number of this thread's current label, adding it to the table if it is new."""
        context = _thread_state.contexts[-1] if self._contexts and _thread_state.contexts else ""
        label = (context, _thread_state.metadata)
        if (known := self._numbers.get(label)) is not None:
            return known
        end = len(self._table)
        self._table.append(label)  # at index `end`, or later if another thread appends at the same time
        return self._numbers.setdefault(label, self._table.index(label, end))

    def table(self) -> tuple[tuple[str, str], ...]:
        return tuple(self._table[1:])


def register(allocator: Allocator) -> None:
    """Register an allocator that starts recording for annotations."""
    _allocators.add(allocator)
    allocator.annotating = _annotated


def set_metadata(said: str | Mapping[str, Any]) -> None:
    """Set the metadata of the history entries that this thread makes from now on.

    Parameters
    ----------
    said : str or Mapping
        The metadata; a mapping is converted to compact JSON.

    Notes
    -----
    Applies to the histories of all devices. As `torch.cuda.memory._set_memory_metadata`.

    Examples
    --------
    >>> import forebay
    >>> forebay.memory.set_metadata({"step": 3})
    >>> forebay.memory.metadata()
    '{"step":3}'
    >>> forebay.memory.set_metadata("")
    """
    if not isinstance(said, str):
        import json

        said = json.dumps(said, separators=(",", ":"))
    _thread_state.metadata = said
    _enable_labels()


def metadata() -> str:
    """Return the metadata that this thread has set.

    Returns
    -------
    str
        The metadata; empty by default.

    Notes
    -----
    As `torch.cuda.memory._get_memory_metadata`.
    """
    return _thread_state.metadata


@contextmanager
def temporary_metadata(metadata: str) -> Iterator[None]:
    """Set this thread's metadata inside the `with` block."""
    before = _thread_state.metadata
    set_metadata(metadata)
    try:
        yield
    finally:
        _thread_state.metadata = before


@contextmanager
def compile_context(name: str) -> Iterator[None]:
    """Label the history entries that this thread makes inside the `with` block with a compile context.

    Parameters
    ----------
    name : str
        The context, such as "0/1". Contexts nest; the innermost is used.

    Yields
    ------
    None

    Notes
    -----
    Applies to recordings started with `compile_context=True`.
    """
    before = _thread_state.contexts
    _thread_state.contexts = (*before, name)
    _enable_labels()
    try:
        yield
    finally:
        _thread_state.contexts = before


@contextmanager
def annotate(name: str, **details: str) -> Iterator[None]:
    """Record the start and the end of a named span.

    Parameters
    ----------
    name : str
        The name of the span.
    **details : str
        More fields of the two annotations.

    Yields
    ------
    None

    Notes
    -----
    The annotations are kept beside the histories of all devices whose recording was started with `annotations=True`,
    in a snapshot under "external_annotations".
    """
    add_annotation(name, "START", details)
    try:
        yield
    finally:
        add_annotation(name, "END", details)


def add_annotation(name: str, stage: str, details: Mapping[str, str] = MappingProxyType({})) -> None:
    """Record one end of a span; `stage` is "START" or "END"."""
    if not _allocators:
        return
    entry = {**details, "stage": stage, "name": name, "time_us": time.time_ns() // 1000}
    for allocator in tuple(_allocators):
        if (annotations := allocator.labels.annotations) is not None:
            annotations.append({**entry, "device": allocator.port.props.index})


def _enable_labels() -> None:
    global _annotated  # noqa: PLW0603 -- entries look up their label only once a program has set one
    _annotated = True
    for allocator in tuple(_allocators):
        allocator.annotating = True
