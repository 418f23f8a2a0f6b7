"""User annotations of the memory history: metadata, compile context and named spans.

Metadata and compile context are per thread; each history entry has the values at the time it was made.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any
from weakref import WeakSet

from forebay.runtime.history.labels import thread_state
from forebay.runtime.history.recorded_pool import RecordedPool

__all__ = [
    "add_annotation",
    "annotate",
    "compile_context",
    "metadata",
    "register",
    "set_metadata",
    "temporary_metadata",
]


_recorded: WeakSet[RecordedPool] = WeakSet()  # that record, or have recorded
_annotated = False  # whether the program has ever set metadata or a context


def register(pool: RecordedPool) -> None:
    """Register a pool that starts recording for annotations."""
    _recorded.add(pool)
    pool.annotating = _annotated


def set_metadata(said: str | Mapping[str, Any]) -> None:
    """Set the metadata of the history entries that this thread makes from now on.

    Applies to the histories of all devices. As `torch.cuda.memory._set_memory_metadata`.

    Parameters
    ----------
    said : str or Mapping
        The metadata; a mapping is converted to compact JSON.

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
    thread_state.metadata = said
    _enable_labels()


def metadata() -> str:
    """Return the metadata that this thread has set; empty by default.

    As `torch.cuda.memory._get_memory_metadata`.
    """
    return thread_state.metadata


@contextmanager
def temporary_metadata(metadata: str) -> Iterator[None]:
    """Set this thread's metadata inside the `with` block."""
    before = thread_state.metadata
    set_metadata(metadata)
    try:
        yield
    finally:
        thread_state.metadata = before


@contextmanager
def compile_context(name: str) -> Iterator[None]:
    """Label the history entries that this thread makes inside the `with` block with a compile context.

    Applies to recordings started with `compile_context=True`.

    Parameters
    ----------
    name : str
        The context, such as "0/1". Contexts nest; the innermost is used.
    """
    before = thread_state.contexts
    thread_state.contexts = (*before, name)
    _enable_labels()
    try:
        yield
    finally:
        thread_state.contexts = before


@contextmanager
def annotate(name: str, **details: str) -> Iterator[None]:
    """Record the start and the end of a named span.

    The annotations are kept beside the histories of all devices whose recording was started with `annotations=True`,
    in a snapshot under "external_annotations".

    Parameters
    ----------
    name : str
        The name of the span.
    **details : str
        More fields of the two annotations.
    """
    add_annotation(name, "START", details)
    try:
        yield
    finally:
        add_annotation(name, "END", details)


def add_annotation(
    name: str, stage: str, details: Mapping[str, str] = MappingProxyType({}), *, function: bool = False
) -> None:
    """Record one end of a span; `stage` is "START" or "END". `function`: of PyTorch's `record_function`."""
    if not _recorded:
        return
    entry = {**details, "stage": stage, "name": name, "time_us": time.time_ns() // 1000}
    for pool in tuple(_recorded):
        labels, placed = pool.labels, {**entry, "device": pool.port.props.index}
        if labels.annotations is not None and labels.wants(function=function):
            labels.annotations.append(placed)
        if pool.program is not None:
            pool.program.annotations.append(placed)


def _enable_labels() -> None:
    global _annotated  # noqa: PLW0603 -- entries look up their label only once a program has set one
    _annotated = True
    for pool in tuple(_recorded):
        pool.annotating = True
