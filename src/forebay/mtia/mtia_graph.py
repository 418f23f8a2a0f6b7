"""Graphs of MTIA devices. (`torch.mtia.mtia_graph`)"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from forebay.faces.graphs import CaptureContext, is_capturing
from forebay.mtia import streams
from forebay.mtia._kind import MTIA
from forebay.runtime.allocator.private_pools import PoolId
from forebay.runtime.graphs.graph import Graph
from forebay.runtime.memory.mem_pool import new_id

__all__ = ["MTIAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing"]


class MTIAGraph(Graph):
    """The work of an MTIA stream, be it the default one, recorded to be done again and again. (`torch.mtia.MTIAGraph`)

    >>> import forebay, forebay.mtia as mtia
    >>> with forebay.emulate("mtia"):
    ...     counts, graph = forebay.zeros(2, device="mtia"), mtia.MTIAGraph()
    ...     with mtia.graph(graph):
    ...         _ = counts.fill_(7)
    ...     before = counts.tolist()
    ...     graph.replay()
    ...     before, counts.tolist()
    ([0.0, 0.0], [7.0, 7.0])
    """

    kind = "mtia"
    name = "MTIAGraph"
    of_default_stream = True  # as `graph` below records the current one

    def __init__(self, keep_graph: bool = False) -> None:
        MTIA.hook("mtiagraphCreate")
        super().__init__(keep_graph)

    def capture_begin(self, pool: PoolId) -> None:  # type: ignore[override]  # PyTorch's
        """Record what the current stream is told from now on, with memory of that pool; (0, 0) is one of its own."""
        super().capture_begin(pool)


class graph(CaptureContext):  # noqa: N801 -- PyTorch's name
    """What is queued inside is captured into `mtia_graph`, on `stream`. (`torch.mtia.graph`)

    If none is given that is the stream which was current when the first of these contexts was made. Waits for the
    device first and empties its cache.
    """

    kind = MTIA

    def __init__(self, mtia_graph: MTIAGraph, pool: PoolId | None = None, stream: streams.Stream | None = None) -> None:
        super().__init__(pool, stream)
        self.mtia_graph = mtia_graph

    def begin(self, pool: Any) -> None:
        self.mtia_graph.capture_begin((0, 0) if pool is None else pool)

    def end(self) -> None:
        self.mtia_graph.capture_end()

    @staticmethod
    def new_stream() -> streams.Stream:
        return streams.current_stream()

    @staticmethod
    def stream_context(stream: Any) -> AbstractContextManager[Any]:
        return streams.StreamContext(stream)


def is_current_stream_capturing() -> bool:
    """Whether the current stream is captured. Initialises nothing. (`torch.mtia.is_current_stream_capturing`)"""
    return is_capturing(MTIA)


def graph_pool_handle() -> PoolId:
    """The id of a new memory pool, for graphs that share it. (`torch.mtia.graph_pool_handle`)"""
    MTIA.hook("graphPoolHandle")
    return new_id()
