"""CUDA graphs (`torch.cuda.graphs`)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

from forebay.cuda import streams
from forebay.cuda._kind import CUDA
from forebay.names.graphs import GraphContext, capture_callables, is_capturing
from forebay.runtime.base.pool_ids import PoolId
from forebay.runtime.graphs import finalization, graph_hooks
from forebay.runtime.graphs.graph import Graph, capturing_graph
from forebay.runtime.graphs.removable_hooks import RemovableHandle
from forebay.runtime.memory.mem_pool import MemPool, new_id

__all__ = [
    "CUDAGraph",
    "export_dot",
    "export_graph_data",
    "graph",
    "graph_pool_handle",
    "is_current_stream_capturing",
    "make_graphed_callables",
    "register_graph_capture_end_hook",
    "register_graph_capture_start_hook",
    "register_graph_destroy_hook",
    "register_graph_instantiate_hook",
    "register_graph_replay_end_hook",
    "register_graph_replay_start_hook",
]


class CUDAGraph(Graph):
    """A capture of a CUDA stream's work that can be replayed.

    As `torch.cuda.CUDAGraph`.

    Parameters
    ----------
    keep_graph : bool, default False
        Keep the captured work available for inspection after `capture_end`; `instantiate` or the first replay makes
        it replayable.

    Examples
    --------
    >>> import forebay, forebay.cuda as cuda
    >>> with forebay.emulate("cuda"):
    ...     counts, graph = forebay.zeros(2, device="cuda"), cuda.CUDAGraph()
    ...     with cuda.graph(graph):
    ...         _ = counts.fill_(7)
    ...     before = counts.tolist()
    ...     graph.replay()
    ...     before, counts.tolist()
    ([0.0, 0.0], [7.0, 7.0])
    """

    kind: ClassVar[str] = "cuda"
    name = "CUDAGraph"

    @staticmethod
    def get_currently_capturing_graph() -> CUDAGraph:
        """Return the graph that captures the current stream.

        Raises
        ------
        RuntimeError
            If the current stream is not being captured.
        """
        capturing: CUDAGraph = capturing_graph("cuda")
        return capturing


class graph(GraphContext):  # noqa: N801 -- PyTorch's name
    """A context manager that captures the work of its body into a graph.

    As `torch.cuda.graph`. On entry waits for the device and empties its caches.

    Parameters
    ----------
    cuda_graph : CUDAGraph
        The graph.
    pool : tuple of (int, int) or MemPool, optional
        The memory pool, see `CUDAGraph.capture_begin`; a new one by default.
    stream : Stream, optional
        The stream to capture, made current; one that all captures share by default.
    capture_error_mode : str, default "global"
        See `CUDAGraph.capture_begin`.
    enable_annotations : bool, default False
        Store the annotations of `graph_annotations.mark_kernels`.
    annotation_config : dict, optional
        PyTorch's options "backend", "key_by", "record_py_stacks" and "py_stack_filter_paths". Those that need a
        profiler in the GPU's driver are rejected.
    check_input_liveness : bool, default False
        See `CUDAGraph.capture_begin`.

    Raises
    ------
    ValueError
        If `annotation_config` contains an unknown option or value.
    RuntimeError
        On entry, if the capture cannot begin.
    """

    kind = CUDA

    @staticmethod
    def new_stream() -> streams.Stream:
        """Return a stream of the current device, to capture by default."""
        return streams.Stream()

    @staticmethod
    def stream_context(stream: Any) -> AbstractContextManager[Any]:
        """Return a context manager that makes a stream current.

        Parameters
        ----------
        stream : Stream
            The stream.
        """
        return streams.StreamContext(stream)


# Written by tools/write_names.py from tools/names/graphs.toml: edit the table, not these lines.


def is_current_stream_capturing() -> bool:
    """Return True if the current stream is being captured; False also before CUDA's first use.

    As `torch.cuda.is_current_stream_capturing`. Does not initialise CUDA.
    """
    return is_capturing(CUDA)


def graph_pool_handle() -> PoolId:
    """Return the id of a new memory pool for graphs to share, for the parameter `pool` of a capture.

    As `torch.cuda.graph_pool_handle`. Does not initialise CUDA.
    """
    return new_id()


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,  # noqa: ARG001 -- no gradients
    pool: PoolId | MemPool | None = None,
    capture_error_mode: str = "global",
    enable_annotations: bool = False,
) -> Any:
    """Return callables that replay the captured work of other callables.

    As `torch.cuda.make_graphed_callables`, but without backward passes. All functions are captured on one stream.

    Parameters
    ----------
    callables : callable or tuple of callable
        The functions to capture.
    sample_args : tuple or tuple of tuple
        The sample arguments of each function: tensors only.
    num_warmup_iters : int, default 3
        Calls of each function before its capture.
    allow_unused_input : bool, default False
        Ignored: there are no gradients.
    pool : tuple of (int, int) or MemPool, optional
        The memory pool for all captures; a new one by default.
    capture_error_mode : str, default "global"
        See `CUDAGraph.capture_begin`.
    enable_annotations : bool, default False
        See `forebay.cuda.graph`.

    Returns
    -------
    callable or tuple of callable
        One for each function. A call copies its arguments to the sample arguments and replays the graph; the next call
        overwrites its results.

    Raises
    ------
    AssertionError
        If a sample argument is not a tensor.
    """
    return capture_callables(
        graph, CUDAGraph, callables, sample_args, num_warmup_iters, pool, capture_error_mode, enable_annotations
    )


def export_dot(path: str, *, verbose: bool = True) -> Callable[[Graph], None]:
    """Return a hook for `register_graph_capture_end_hook` that writes the graph to a file in the DOT language.

    As `torch.cuda.export_dot`.

    Parameters
    ----------
    path : str
        The file.
    verbose : bool, default True
        Include the details of each node.
    """
    return lambda graph: graph.debug_dump(path, verbose=verbose)


def export_graph_data(path: str) -> Callable[[Graph], None]:
    """Return a hook for `register_graph_instantiate_hook` that pickles the graph's `get_graph_data()` to a file.

    As `torch.cuda.export_graph_data`.

    Parameters
    ----------
    path : str
        The file.
    """
    return lambda graph: _write_graph_data(path, graph)


def register_graph_capture_start_hook(fn: Callable[[CUDAGraph], object]) -> RemovableHandle:
    """Register a callback for the start of every graph capture.

    As `torch.cuda.graphs.register_graph_capture_start_hook`. Work that the callback queues is captured.

    Parameters
    ----------
    fn : callable
        Receives the graph.

    Returns
    -------
    RemovableHandle
        Its `remove()` unregisters the callback.
    """
    return graph_hooks.capture_began.add(fn)


def register_graph_capture_end_hook(fn: Callable[[CUDAGraph], object]) -> RemovableHandle:
    """Register a callback for the end of every graph capture.

    As `torch.cuda.graphs.register_graph_capture_end_hook`. The captured work can still be inspected.

    Parameters
    ----------
    fn : callable
        Receives the graph.

    Returns
    -------
    RemovableHandle
        Its `remove()` unregisters the callback.
    """
    return graph_hooks.captured.add(fn)


def register_graph_instantiate_hook(fn: Callable[[CUDAGraph], object]) -> RemovableHandle:
    """Register a callback for every instantiation of a graph.

    As `torch.cuda.graphs.register_graph_instantiate_hook`.

    Parameters
    ----------
    fn : callable
        Receives the graph.

    Returns
    -------
    RemovableHandle
        Its `remove()` unregisters the callback.
    """
    return graph_hooks.instantiated.add(fn)


def register_graph_replay_start_hook(fn: Callable[[CUDAGraph], object]) -> RemovableHandle:
    """Register a callback that precedes every replay of a graph.

    As `torch.cuda.graphs.register_graph_replay_start_hook`.

    Parameters
    ----------
    fn : callable
        Receives the graph.

    Returns
    -------
    RemovableHandle
        Its `remove()` unregisters the callback.
    """
    return graph_hooks.replay_began.add(fn)


def register_graph_replay_end_hook(fn: Callable[[CUDAGraph], object]) -> RemovableHandle:
    """Register a callback that follows every replay of a graph, once it is queued or has failed to be queued.

    As `torch.cuda.graphs.register_graph_replay_end_hook`.

    Parameters
    ----------
    fn : callable
        Receives the graph.

    Returns
    -------
    RemovableHandle
        Its `remove()` unregisters the callback.
    """
    return graph_hooks.replayed.add(fn)


def register_graph_destroy_hook(fn: Callable[[set[int]], object]) -> RemovableHandle:
    """Register a callback for the destruction or reset of every graph.

    As `torch.cuda.graphs.register_graph_destroy_hook`.

    Parameters
    ----------
    fn : callable
        Receives the set of the numbers that the graph had if it was annotated, else an empty set.

    Returns
    -------
    RemovableHandle
        Its `remove()` unregisters the callback.
    """
    return finalization.destroyed.add(fn)


# End of the written lines.


def _write_graph_data(path: str, graph: Graph) -> None:
    Path(path).write_bytes(pickle.dumps(graph.get_graph_data()))
