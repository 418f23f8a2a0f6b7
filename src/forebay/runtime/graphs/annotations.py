"""Annotations of graph nodes, keyed by node number so that profiler output can be joined with them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from forebay.runtime.graphs import graph_export

if TYPE_CHECKING:
    from forebay.runtime.streams.stream import Stream
    from forebay.spi import CapturedNode

__all__ = ["clear", "discard", "dump_stacks", "mark", "publish", "recorded", "stacks"]

_recorded: dict[int, list[dict[str, Any]]] = {}
recorded: Mapping[int, list[dict[str, Any]]] = MappingProxyType(_recorded)
stacks: Mapping[int, str] = MappingProxyType({})  # always empty: recording stacks needs a profiler in the driver


@contextmanager
def mark(stream: Stream, annotation: str | dict[str, Any]) -> Iterator[None]:
    """Annotate the work captured in the context; a string is stored under "name". The innermost scope wins.

    Does nothing if the stream is not being captured, or if its graph does not record annotations.
    """
    capture = stream.capture
    annotations = None if capture is None else capture.annotations
    if capture is None or annotations is None:
        yield
        return
    start = len(capture.recording.work)
    try:
        yield
    finally:
        fields = {"name": annotation} if isinstance(annotation, str) else dict(annotation)
        for number in range(start, len(capture.recording.work)):
            annotations[number] = {**fields, **annotations.get(number, {})}


def publish(
    ids: set[int], newest: int, work: Sequence[CapturedNode], annotations: Mapping[int, dict[str, Any]]
) -> None:
    """Store the annotations of a graph's work under the node numbers of its newest executable, replacing older ones.

    `ids` are those of all its executables, to which the newest is added.
    """
    discard(ids)
    ids.add(newest)
    for at, number in enumerate(graph_export.top_level(work)):
        if number in annotations:
            _recorded[newest << 32 | at] = [dict(annotations[number])]


def discard(graphs: set[int]) -> None:
    """Remove the annotations of these graph executables."""
    for key in [key for key in tuple(_recorded) if key >> 32 in graphs]:
        _recorded.pop(key, None)


def clear() -> None:
    """Remove all annotations."""
    _recorded.clear()


def dump_stacks(path: str) -> None:
    """Write the stacks as gzip-compressed JSON."""
    with gzip.open(Path(path), "wt", encoding="utf-8") as file:
        json.dump(dict(stacks), file)
