"""`torch.compile` on emulated devices: the graphs that Dynamo has traced.

Inductor, which compiles traced graphs for GPUs, needs Triton and a GPU. Graphs with tensors of an emulated device run
operator by operator instead, as with the backend "aot_eager": what the backward pass keeps is chosen as by Inductor,
but operators are not fused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import wraps
from typing import Any

import torch

from forebay.errors import ForebayWarning
from forebay.interop.torch.compile.dynamo import skip_own_files
from forebay.interop.torch.devices.python_names import NameReplacements

__all__ = ["replace_compilation"]


def replace_compilation(names: NameReplacements, undo: ExitStack) -> None:
    """Let `torch.compile` trace programs on emulated devices, and run their graphs."""
    exchange = torch.cuda._maybe_exchange_device

    def maybe_exchange(device: int) -> int:  # Dynamo needs another function than torch.cuda._exchange_device
        return int(exchange(device))

    names.replace(torch.cuda, "_maybe_exchange_device", maybe_exchange)
    skip_own_files(undo)
    inductor = torch._TorchCompileInductorWrapper
    names.replace(inductor, "__call__", _uncompiled(inductor.__call__))


def _uncompiled(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    """Return Inductor's entry, which compiles graphs of the CPU only."""

    @wraps(compile_graph)
    def run(self: object, model_: Any, inputs_: Any, **keywords: Any) -> Any:
        if not any(each.is_cuda for each in _tensors(model_, inputs_)):
            return compile_graph(self, model_, inputs_, **keywords)
        warnings.warn(
            "torch.compile() cannot compile for emulated devices: the graph runs operator by operator, as with "
            "backend='aot_eager'. Its temporaries take more memory than those of compiled code",
            ForebayWarning,
            stacklevel=2,
        )
        return torch._dynamo.lookup_backend("aot_eager")(model_, inputs_)

    return run


def _tensors(model: Any, inputs: Any) -> Iterable[torch.Tensor]:
    """Yield the tensors of a graph: its inputs, parameters and results of its operators."""
    yield from (each for each in inputs if isinstance(each, torch.Tensor))
    yield from model.parameters()
    yield from model.buffers()
    for node in model.graph.nodes:
        if isinstance(made := node.meta.get("example_value"), torch.Tensor):
            yield made
