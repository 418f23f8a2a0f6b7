"""Graphs of whatever accelerator is current. (`torch.accelerator.graphs`)"""

from __future__ import annotations

from forebay.faces.graphs import make_room
from forebay.runtime.allocator.private_pools import PoolId
from forebay.runtime.devices import current
from forebay.runtime.graphs import graph

__all__ = ["Graph"]


class Graph(graph.Graph):
    """The work of the current stream, recorded once to be done again and again. (`torch.accelerator.Graph`)

    As a context manager it waits for the device, empties its caches, and captures what is queued inside.

    >>> import forebay
    >>> from forebay.accelerator.graphs import Graph
    >>> counts, recorded = forebay.zeros(2, device="host:0"), Graph()
    >>> with forebay.Stream("host:0"), recorded:
    ...     _ = counts.fill_(7)
    >>> recorded.replay(); counts.tolist()
    [7.0, 7.0]
    """

    modes = ("default", "global", "thread_local", "relaxed")

    def __init__(
        self, keep_graph: bool = False, *, pool: PoolId | None = None, capture_error_mode: str = "default"
    ) -> None:
        super().__init__(keep_graph)
        self.graph_pool = pool
        self.capture_error_mode = capture_error_mode

    def capture_begin(self) -> None:  # type: ignore[override]  # PyTorch's
        """Record what the current stream is told from now on, with the pool and the mode of the graph."""
        super().capture_begin(self.graph_pool, self.capture_error_mode)

    def debug_dump(self, path: str) -> None:  # type: ignore[override]  # PyTorch's
        """Write what was recorded to that file, in Graphviz's language DOT. Needs `enable_debug_mode`."""
        super().debug_dump(path)

    def __enter__(self) -> None:
        make_room(current.opened_for())
        self.capture_begin()

    def __exit__(self, *exc_info: object) -> None:
        self.capture_end()
