"""Kernels of collective operations on emulated devices: a backend for the CPU transfers the values."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import alias
from forebay.interop.torch.devices.python_names import NameReplacements

__all__ = ["collective_kernels", "replace_process_groups"]

_NAMES = (
    "_allgather_base_", "_reduce_scatter_base_", "allgather_", "allgather_coalesced_",
    "allgather_into_tensor_coalesced_", "allreduce_", "allreduce_coalesced_", "alltoall_", "alltoall_base_", "barrier",
    "broadcast_", "gather_", "recv_", "recv_any_source_", "reduce_", "reduce_scatter_",
    "reduce_scatter_tensor_coalesced_", "scatter_", "send",
)  # fmt: skip


def collective_kernels() -> dict[str, Callable[..., Any]]:
    """Return the kernels by name; none if this PyTorch has no process groups."""
    if not torch.distributed.is_available():
        return {}
    operators = torch.ops.c10d
    return {f"c10d::{name}": _kernel(getattr(operators, name).default) for name in _NAMES if hasattr(operators, name)}


def _kernel(operator: Any) -> Callable[..., Any]:
    returned = operator._schema.returns

    def run(*args: Any, **keywords: Any) -> Any:
        if values.is_computed():
            result = operator(*map(_on_host, args), **{name: _on_host(each) for name, each in keywords.items()})
            work = result if len(returned) == 1 else result[-1]
        else:
            work = _done(args[0])
        return work if len(returned) == 1 else (args[0], work)

    return run


def _done(results: Any) -> Any:
    """Return finished work, in place of a transfer of values that are not computed."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(list(results) if isinstance(results, (list, tuple)) else [results])
    return torch._C._distributed_c10d._create_work_from_future(future).boxed()


def _on_host(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return alias(argument) if argument.is_cuda else argument
    if isinstance(argument, (list, tuple)):
        return [_on_host(each) for each in argument]
    return argument


def replace_process_groups(names: NameReplacements) -> None:
    """Let programs that ask for NCCL use Gloo."""
    if not torch.distributed.is_available():
        return
    module: Any = torch.distributed
    names.replace(module, "is_nccl_available", lambda: True)
    names.replace(module.Logger, "set_runtime_stats_and_log", lambda self: None)  # noqa: ARG005 -- needs a timer of CUDA events
    if not values.is_computed():  # it compares the shapes in tensors
        names.replace(module, "_verify_params_across_processes", lambda *_: None)
    for owner in (module, module.distributed_c10d):
        for name in ("init_process_group", "new_group"):
            names.replace(owner, name, _with_gloo(getattr(owner, name)))


def _with_gloo(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that creates process groups, whose backend is Gloo for NCCL."""

    @wraps(function)
    def create(*args: Any, **keywords: Any) -> Any:
        keywords.pop("device_id", None)  # binds the group to a device of NCCL
        if function.__name__ == "init_process_group" and args:
            args = (_gloo(args[0]), *args[1:])
        else:
            keywords["backend"] = _gloo(keywords.get("backend"))
        return function(*args, **keywords)

    return create


def _gloo(backend: Any) -> Any:
    """Return the backend to use in place of one."""
    if backend is None or "nccl" in str(backend):
        return None if backend is None and torch.distributed.is_initialized() else "cpu:gloo,cuda:gloo"
    return "cpu:gloo,cuda:gloo" if backend == "gloo" else backend
