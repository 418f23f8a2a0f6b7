"""Graphs of CUDA devices. (`torch.cuda.graphs`)"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from forebay.cuda import streams
from forebay.cuda._kind import CUDA
from forebay.faces.graphs import GraphContext, graphed, is_capturing
from forebay.runtime.allocator.private_pools import PoolId
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
    """The work of a CUDA stream, recorded once to be done again and again. (`torch.cuda.CUDAGraph`)

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

    kind = "cuda"
    name = "CUDAGraph"

    @staticmethod
    def get_currently_capturing_graph() -> CUDAGraph:
        """The graph that the current stream's work goes to. RuntimeError where it goes to none."""
        found: CUDAGraph = capturing_graph("cuda")
        return found


class graph(GraphContext):  # noqa: N801 -- PyTorch's name
    """What is queued inside is captured into `cuda_graph`, on `stream` or one of its own. (`torch.cuda.graph`)

    Waits for the device first and empties its caches. `CUDAGraph.capture_begin` tells of `pool`, `capture_error_mode`
    and `check_input_liveness`. With `enable_annotations` the scopes of `graph_annotations.mark_kernels` are kept.
    """

    kind = CUDA

    @staticmethod
    def new_stream() -> streams.Stream:
        return streams.Stream()

    @staticmethod
    def stream_context(stream: Any) -> AbstractContextManager[Any]:
        return streams.StreamContext(stream)


def is_current_stream_capturing() -> bool:
    """Whether the current stream is captured. Initialises nothing. (`torch.cuda.is_current_stream_capturing`)"""
    return is_capturing(CUDA)


def graph_pool_handle() -> PoolId:
    """The id of a new memory pool, for graphs that share it. (`torch.cuda.graph_pool_handle`)"""
    return new_id()


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,  # noqa: ARG001 -- it is about gradients
    pool: PoolId | MemPool | None = None,
    capture_error_mode: str = "global",
    enable_annotations: bool = False,
) -> Any:
    """A callable that replays what `callables` does with `sample_args`, tensors only; of a tuple, one for each.

    Each is run `num_warmup_iters` times first, and captured on one stream, with one pool for all. Arguments of other
    tensors are copied to where the samples are; what is returned is overwritten by the next call. There are no
    gradients here, so no backward passes are captured. (`torch.cuda.make_graphed_callables`)
    """
    return graphed(
        graph, CUDAGraph, callables, sample_args, num_warmup_iters, pool, capture_error_mode, enable_annotations
    )


def export_dot(path: str, *, verbose: bool = True) -> Callable[[Graph], None]:
    """A capture-end hook that draws each graph in that file. (`torch.cuda.export_dot`)"""
    return lambda ended: ended.debug_dump(path, verbose=verbose)


def export_graph_data(path: str) -> Callable[[Graph], None]:
    """A post-instantiate hook that pickles each graph's `get_graph_data` there. (`torch.cuda.export_graph_data`)"""
    return lambda made: _write(path, made)


def _write(path: str, made: Graph) -> None:
    Path(path).write_bytes(pickle.dumps(made.get_graph_data()))


def register_graph_capture_start_hook(fn: Callable[[Any], object]) -> RemovableHandle:
    """Called with every graph as its capture begins; what it queues is captured."""
    return graph_hooks.capture_began.add(fn)


def register_graph_capture_end_hook(fn: Callable[[Any], object]) -> RemovableHandle:
    """Called with every graph as its capture has ended, while what was recorded can be looked at."""
    return graph_hooks.captured.add(fn)


def register_graph_instantiate_hook(fn: Callable[[Any], object]) -> RemovableHandle:
    """Called with every graph that was made ready to replay."""
    return graph_hooks.instantiated.add(fn)


def register_graph_replay_start_hook(fn: Callable[[Any], object]) -> RemovableHandle:
    """Called with every graph before each replay."""
    return graph_hooks.replay_began.add(fn)


def register_graph_replay_end_hook(fn: Callable[[Any], object]) -> RemovableHandle:
    """Called with every graph after each replay was queued, or could not be."""
    return graph_hooks.replayed.add(fn)


def register_graph_destroy_hook(fn: Callable[[set[int]], object]) -> RemovableHandle:
    """Called with the numbers that an annotated graph had, of every graph that ends or is reset."""
    return finalization.destroyed.add(fn)
