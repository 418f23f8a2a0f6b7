"""Annotations of the nodes that CUDA graphs capture (`torch.cuda.graph_annotations`).

>>> import forebay, forebay.cuda as cuda
>>> from forebay.cuda import graph_annotations
>>> with forebay.emulate("cuda"):
...     numbers, graph = forebay.zeros(2, device="cuda"), cuda.CUDAGraph()
...     with cuda.graph(graph, enable_annotations=True), graph_annotations.mark_kernels("fill"):
...         _ = numbers.fill_(7)
...     list(graph_annotations.get_kernel_annotations().values())
[[{'name': 'fill'}]]
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from forebay.cuda import streams
from forebay.cuda._kind import CUDA
from forebay.runtime.base import capture_state
from forebay.runtime.graphs import annotations as graphs_annotations

__all__ = [
    "clear_kernel_annotations",
    "dump_kernel_py_stacks",
    "get_kernel_annotations",
    "get_kernel_py_stacks",
    "is_available",
    "mark_kernels",
]


def is_available() -> bool:
    """Return True if there is a CUDA device, emulated or not, whose graphs can be annotated.

    As `torch.cuda.graph_annotations.is_available`. Does not initialise CUDA.
    """
    return CUDA.count() > 0


@contextmanager
def mark_kernels(annotation: str | dict[str, Any], *, backward: bool = True) -> Iterator[None]:  # noqa: ARG001 -- no gradients
    """Annotate the work that the body of a `with` statement captures.

    As `torch.cuda.graph_annotations.mark_kernels`. Has no effect unless the current stream is captured by
    `forebay.cuda.graph(..., enable_annotations=True)`.

    Parameters
    ----------
    annotation : str or dict
        The annotation; a string is stored under the key "name". In nested statements the inner one wins.
    backward : bool, default True
        Ignored: there are no gradients.
    """
    if not capture_state.active:
        yield
        return
    with graphs_annotations.mark(streams.current_stream(), annotation):
        yield


def get_kernel_annotations() -> Mapping[int, list[dict[str, Any]]]:
    """Return the annotations of all graphs.

    As `torch.cuda.graph_annotations.get_kernel_annotations`.

    Returns
    -------
    mapping of int to list of dict
        A read-only live view. The keys are node numbers: `tools_id` in `CUDAGraph.get_graph_data`.
    """
    return graphs_annotations.recorded


def clear_kernel_annotations() -> None:
    """Delete the annotations of all graphs.

    As `torch.cuda.graph_annotations.clear_kernel_annotations`.

    Warns
    -----
    FutureWarning
        Always: the annotations of a graph are deleted with it.
    """
    warnings.warn(
        "`forebay.cuda.graph_annotations.clear_kernel_annotations` is deprecated. The registry bounds itself: "
        "annotations are rekeyed to the exec graph on instantiate and dropped when that graph is destroyed, so a "
        "global wipe is not needed and discards annotations for graphs that are still live.",
        FutureWarning,
        stacklevel=2,
    )
    graphs_annotations.clear()


def get_kernel_py_stacks() -> Mapping[int, str]:
    """Return the Python stack of each node: always empty.

    As `torch.cuda.graph_annotations.get_kernel_py_stacks`.

    Returns
    -------
    mapping of int to str
        Empty: recording the stacks needs a profiler in the GPU's driver.
    """
    return graphs_annotations.stacks


def dump_kernel_py_stacks(path: str) -> None:
    """Write the Python stacks of all nodes to a file.

    As `torch.cuda.graph_annotations.dump_kernel_py_stacks`.

    Parameters
    ----------
    path : str
        The file, written as gzip-compressed JSON.
    """
    graphs_annotations.dump_stacks(path)
