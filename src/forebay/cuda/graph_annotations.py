"""Names for parts of what CUDA graphs capture. (`torch.cuda.graph_annotations`)

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
    """Whether captures can be annotated: where there is a device."""
    return CUDA.count() > 0


@contextmanager
def mark_kernels(annotation: str | dict[str, Any], *, backward: bool = True) -> Iterator[None]:  # noqa: ARG001 -- no gradients
    """What is captured inside is annotated, if its graph was captured with `enable_annotations`."""
    if not capture_state.under_way:
        yield
        return
    with graphs_annotations.mark(streams.current_stream(), annotation):
        yield


def get_kernel_annotations() -> Mapping[int, list[dict[str, Any]]]:
    """All annotations that there are now, by node: `tools_id` of `CUDAGraph.get_graph_data`."""
    return graphs_annotations.recorded


def clear_kernel_annotations() -> None:
    """Forget them all."""
    graphs_annotations.clear()


def get_kernel_py_stacks() -> Mapping[int, str]:
    """The Python stack of each node: empty, as only a profiler in a GPU's driver records them."""
    return graphs_annotations.stacks


def dump_kernel_py_stacks(path: str) -> None:
    """Write them to a file, as compressed JSON."""
    graphs_annotations.dump_stacks(path)
