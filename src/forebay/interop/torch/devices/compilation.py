"""`torch.compile` on emulated devices: Dynamo knows the replaced functions, and Inductor's graphs run uncompiled.

# Note [Tables by function]
Dynamo, which traces programs, and TorchScript keep tables by function object. A function that a patch has replaced is
not in them, so that a graph would break there, and one that was replaced remains in them after the patch. The tables
are therefore cleared when functions are replaced and when they are restored, and Dynamo skips the kernels of emulated
devices, which it would trace when graphs call them. Rejected: changing the functions in place (`__code__`), as most are
C functions.
Test: tests/interop/torch/devices/test_compilation.py::test_kernels_are_executed_not_traced

Inductor, which compiles traced graphs for GPUs, needs Triton and a GPU. Graphs with tensors of an emulated device run
operator by operator instead, as with the backend "aot_eager": what the backward pass keeps is chosen as by Inductor,
but operators are not fused.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from functools import cache, wraps
from importlib import import_module
from operator import attrgetter
from typing import Any

import torch

from forebay.errors import ForebayWarning
from forebay.interop.torch.devices.python_names import NameReplacements

__all__ = ["forget_compiled", "forget_functions", "replace_compilation"]

_CACHES = {  # functions that keep such tables, by module: Note [Tables by function]
    "torch.overrides": ("_get_overridable_functions",),
    "torch._dynamo.trace_rules": ("get_torch_obj_rule_map",),
    "torch._dynamo.variables.torch": ("get_overridable_functions", "TorchInGraphFunctionVariable._get_handlers"),
}
_RULES = "torch._dynamo.trace_rules"
_NOT_TRACED = ("forebay.interop.torch.devices", "forebay.interop.torch.kernels", "forebay.runtime")


def replace_compilation(names: NameReplacements) -> None:
    """Let `torch.compile` trace programs on emulated devices, and run their graphs."""
    exchange = torch.cuda._maybe_exchange_device

    def maybe_exchange(device: int) -> int:  # Dynamo needs another function than torch.cuda._exchange_device
        return int(exchange(device))

    names.replace(torch.cuda, "_maybe_exchange_device", maybe_exchange)
    names.replace(torch, "compile", _without_kernels(torch.compile))
    if _RULES in sys.modules:
        _skip_kernels()
    inductor = torch._TorchCompileInductorWrapper
    names.replace(inductor, "__call__", _uncompiled(inductor.__call__))


def forget_functions() -> None:
    """Clear tables of PyTorch's functions, some of which have been replaced."""
    for name, functions in _CACHES.items():
        if (module := sys.modules.get(name)) is not None:
            for function in functions:
                attrgetter(function)(module).cache_clear()


def forget_compiled() -> None:
    """Clear what Dynamo has compiled, and the tables. The graphs belong to emulated devices that end."""
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.reset()
    forget_functions()


def _without_kernels(compile_function: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch.compile(), after whose call Dynamo is imported and does not trace kernels."""

    @wraps(compile_function)
    def run(*args: Any, **keywords: Any) -> Any:
        _skip_kernels()
        return compile_function(*args, **keywords)

    return run


@cache
def _skip_kernels() -> None:
    """Let Dynamo execute the kernels of emulated devices in this process, as it executes those in C++."""
    rules = import_module(_RULES)
    for package in _NOT_TRACED:
        rules.add(package)


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
