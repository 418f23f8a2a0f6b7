"""Graphs of the current accelerator. (`torch.accelerator.graphs`)"""

from __future__ import annotations

from typing import ClassVar

from forebay.accelerator._kind import accelerator
from forebay.names.graphs import free_cached_memory
from forebay.runtime.base.pool_ids import PoolId
from forebay.runtime.devices import current
from forebay.runtime.graphs import graph

__all__ = ["Graph"]


class Graph(graph.Graph):
    """A recording of the current stream's work that can be replayed.

    As `torch.accelerator.Graph`. As a context manager it synchronises the device, empties the caches, and captures
    the work queued inside.

    Parameters
    ----------
    keep_graph : bool, optional
        True to keep the recording for inspection and to instantiate it later.
    pool : tuple of int, optional
        The id of the private memory pool of the capture; a new pool by default.
    capture_error_mode : {"default", "global", "thread_local", "relaxed"}, optional
        The calls of other threads that break the capture.

    Raises
    ------
    ForebayError
        If there is no accelerator.

    Examples
    --------
    >>> import forebay
    >>> from forebay.accelerator.graphs import Graph
    >>> with forebay.emulate("cuda"):
    ...     counts, recorded = forebay.zeros(2, device="cuda"), Graph()
    ...     with forebay.Stream("cuda"), recorded:
    ...         _ = counts.fill_(7)
    ...     recorded.replay()
    ...     counts.tolist()
    [7.0, 7.0]
    """

    capture_modes: ClassVar[tuple[str, ...]] = ("default", "global", "thread_local", "relaxed")

    def __init__(
        self, keep_graph: bool = False, *, pool: PoolId | None = None, capture_error_mode: str = "default"
    ) -> None:
        accelerator()  # raises without one
        super().__init__(keep_graph)
        self.graph_pool = pool
        self.capture_error_mode = capture_error_mode

    def capture_begin(self) -> None:  # type: ignore[override]  # PyTorch's signature
        """Start recording the work of the current stream."""
        super().capture_begin(self.graph_pool, self.capture_error_mode)

    def debug_dump(self, path: str) -> None:  # type: ignore[override]  # PyTorch's signature
        """Write the recording to a file in Graphviz's DOT language.

        Needs `enable_debug_mode`.

        Parameters
        ----------
        path : str
            The file.
        """
        super().debug_dump(path)

    def __enter__(self) -> None:
        free_cached_memory(current.opened_for())
        self.capture_begin()

    def __exit__(self, *exc_info: object) -> None:
        self.capture_end()
