"""Graphs of MTIA devices. (`torch.mtia.mtia_graph`)"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar

from forebay.mtia import streams
from forebay.mtia._kind import MTIA
from forebay.names.graphs import CaptureContext, is_capturing
from forebay.runtime.base.pool_ids import PoolId
from forebay.runtime.graphs.graph import Graph
from forebay.runtime.memory.mem_pool import new_id

__all__ = ["MTIAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing"]


class MTIAGraph(Graph):
    """Captured work of an MTIA stream, which can be replayed.

    As `torch.mtia.MTIAGraph`. The default stream can be captured too.

    Parameters
    ----------
    keep_graph : bool, default False
        Keep the captured graph for `instantiate()`; by default `capture_end()` instantiates it.

    Raises
    ------
    ForebayError
        If there is no MTIA device.

    Examples
    --------
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

    kind: ClassVar[str] = "mtia"
    name = "MTIAGraph"
    allows_default_stream = True  # `graph` below captures the current stream

    def __init__(self, keep_graph: bool = False) -> None:
        MTIA.require_backend("mtiagraphCreate")
        super().__init__(keep_graph)

    def capture_begin(self, pool: PoolId) -> None:  # type: ignore[override]  # PyTorch's
        """Begin the capture of the current stream.

        Parameters
        ----------
        pool : tuple of int
            The id of the memory pool to allocate from; (0, 0) creates one.

        Raises
        ------
        RuntimeError
            If the graph already has a capture.
        TypeError
            If `pool` is not a pool id.
        """
        super().capture_begin(pool)


class graph(CaptureContext):  # noqa: N801 -- PyTorch's name
    """Context manager that captures the work queued inside into a graph.

    As `torch.mtia.graph`. Entry waits for the device and releases its cached memory.

    Parameters
    ----------
    mtia_graph : MTIAGraph
        The graph.
    pool : tuple of int, optional
        The id of the graph's memory pool; a new one by default.
    stream : Stream, optional
        The stream to capture; by default the stream that was current when the first such context was created.
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
    """Return True if this thread's current stream is being captured.

    As `torch.mtia.is_current_stream_capturing`. Does not initialise MTIA.
    """
    return is_capturing(MTIA)


def graph_pool_handle() -> PoolId:
    """Return the id of a new memory pool that graphs can share, for the `pool` argument of captures.

    As `torch.mtia.graph_pool_handle`. Does not initialise MTIA.

    Raises
    ------
    ForebayError
        If there is no MTIA device.
    """
    MTIA.require_backend("graphPoolHandle")
    return new_id()
