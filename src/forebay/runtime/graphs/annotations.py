"""Names for parts of a capture, to be joined with what a profiler saw: by node, under the node's number."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from forebay.runtime.graphs import graph_export

if TYPE_CHECKING:
    from forebay.runtime.graphs.graph import Graph
    from forebay.runtime.streams.stream import Stream

__all__ = ["clear", "dump_stacks", "forget", "instantiated", "mark", "recorded", "stacks"]

_recorded: dict[int, list[dict[str, Any]]] = {}
recorded: Mapping[int, list[dict[str, Any]]] = MappingProxyType(_recorded)
stacks: Mapping[int, str] = MappingProxyType({})  # to record them takes a profiler in the driver, which no device has


@contextmanager
def mark(stream: Stream, annotation: str | dict[str, Any]) -> Iterator[None]:
    """What is captured inside is annotated, a string under "name"; of scopes that nest, the inner one wins.

    Does nothing where the stream is not captured, or its graph is not annotated.
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
        words = {"name": annotation} if isinstance(annotation, str) else dict(annotation)
        for number in range(start, len(capture.recording.work)):
            annotations[number] = {**words, **annotations.get(number, {})}


def instantiated(graph: Graph, annotations: Mapping[int, dict[str, Any]]) -> None:
    """From now on the annotations are under the numbers of what the graph was made into last."""
    forget(graph.ids)
    name = graph.raw_cuda_graph_exec()
    graph.ids.add(name)
    for at, number in enumerate(graph_export.top(graph.work)):
        if number in annotations:
            _recorded[name << 32 | at] = [dict(annotations[number])]


def forget(graphs: set[int]) -> None:
    """These graphs are no more."""
    for key in [key for key in tuple(_recorded) if key >> 32 in graphs]:
        _recorded.pop(key, None)


def clear() -> None:
    _recorded.clear()


def dump_stacks(path: str) -> None:
    with gzip.open(Path(path), "wt", encoding="utf-8") as file:
        json.dump(dict(stacks), file)
