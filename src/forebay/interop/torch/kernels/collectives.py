"""Kernels of collective operations on emulated devices: a backend for the CPU transfers the values."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import torch
import torch.distributed

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.arguments import forget_values
from forebay.interop.torch.devices.emulated_memory import alias
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.interop.torch.devices.reducer_timers import has_reducer_timer
from forebay.interop.torch.processes import assumed_values

__all__ = ["collective_kernels", "replace_process_groups"]

# What says which ranks a group has, and the defaults, which leave that to the environment.
_ALONE = {"store": None, "rank": -1, "world_size": -1}
_GLOO = "cpu:gloo,cuda:gloo"
_NAMES = (
    "_allgather_base_", "_reduce_scatter_base_", "allgather_", "allgather_coalesced_",
    "allgather_into_tensor_coalesced_", "allreduce_", "allreduce_coalesced_", "alltoall_", "alltoall_base_", "barrier",
    "broadcast_", "gather_", "recv_", "recv_any_source_", "reduce_", "reduce_scatter_",
    "reduce_scatter_tensor_coalesced_", "scatter_", "send",
)  # fmt: skip
# One tensor holds the parts of all ranks: of any shape for NCCL, with the parts in the first dimension for Gloo.
_FLAT = ("c10d::_allgather_base_", "c10d::_reduce_scatter_base_")


def collective_kernels() -> dict[str, Callable[..., Any]]:
    """Return the kernels by name; none if this PyTorch has no process groups."""
    if not torch.distributed.is_available():
        return {}
    operators = torch.ops.c10d
    return {f"c10d::{name}": _kernel(getattr(operators, name).default) for name in _NAMES if hasattr(operators, name)}


def _kernel(operator: Any) -> Callable[..., Any]:
    """Return the kernel. Without values, what is received is unknown.

    DDP reads the order of its buckets after a broadcast, and in the backward pass which parameters all ranks have used:
    these values are taken to be the same in each rank.
    """
    returned = operator._schema.returns
    flat = operator._schema.name in _FLAT
    receives = operator._schema.name not in ("c10d::send", "c10d::broadcast_")
    group_at = [argument.name for argument in operator._schema.arguments].index("process_group")

    def run(*args: Any, **keywords: Any) -> Any:
        work = None
        if values.is_computed():
            given = [_on_host(each, flat=flat) for each in args]
            result = operator(*given, **{name: _on_host(each) for name, each in keywords.items()})
            work = result if len(returned) == 1 else result[-1]
            _note_work(work)
        elif receives and torch._C._current_graph_task_id() == -1:
            forget_values(args[0])
        if work is None or _is_fake(args[group_at]):
            work = _done(args[0])
        return work if len(returned) == 1 else (args[0], work)

    return run


_of_device: weakref.WeakSet[Any] = weakref.WeakSet()  # work whose tensors are on emulated devices


class _Thread(threading.local):
    work: Any = None  # kept until the program has it: C++ code returns the same object of Python


_thread = _Thread()


def _note_work(work: Any) -> None:
    _thread.work = torch.distributed.Work.unbox(work)
    _of_device.add(_thread.work)


# Methods of a backend that a program has made itself. Gloo's C++ code reads the addresses of the tensors.
_METHODS = (
    "_allgather_base", "_reduce_scatter_base", "allgather", "allgather_coalesced", "allreduce", "allreduce_coalesced",
    "alltoall", "alltoall_base", "broadcast", "gather", "recv", "recv_anysource", "reduce", "reduce_scatter", "scatter",
    "send",
)  # fmt: skip


def _replace_backend(names: NameReplacements) -> None:
    backend = torch._C._distributed_c10d.Backend
    for name in _METHODS:
        if hasattr(backend, name):
            names.replace(backend, name, _of_backend(name, getattr(backend, name)))


def _of_backend(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that transfers the values of tensors on emulated devices, as the kernels do."""
    flat, receives = f"c10d::{name}_" in _FLAT, name not in ("send", "broadcast")

    @wraps(method)
    def call(self: Any, *args: Any, **keywords: Any) -> Any:
        given = [*args, *keywords.values()]
        if not any(_has_device(each) for each in given):
            return method(self, *args, **keywords)
        if values.is_computed():
            host = [_on_host(each, flat=flat) for each in args]
            work = method(self, *host, **{key: _on_host(each, flat=flat) for key, each in keywords.items()})
            _of_device.add(work)
            return work
        if receives:
            forget_values(given[0])
        return torch.distributed.Work.unbox(_done(given[0]))

    return call


def _has_device(argument: Any) -> bool:
    if isinstance(argument, (list, tuple)):
        return any(_has_device(each) for each in argument)
    return isinstance(argument, torch.Tensor) and argument.is_cuda


def _is_fake(group: Any) -> bool:
    """Return True for a group of one process, whose finished work has no result, with which DDP would fail."""
    backend = torch.distributed.ProcessGroup.unbox(group)._get_backend(torch.device("cpu"))
    return bool(backend.name() == "fake")


def _done(results: Any) -> Any:
    """Return finished work, in place of a transfer of values that are not computed."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(list(results) if isinstance(results, (list, tuple)) else [results])
    return torch._C._distributed_c10d._create_work_from_future(future).boxed()


def _on_host(argument: Any, *, flat: bool = False) -> Any:
    """Return an argument with tensors over values. Each knows the tensor of the device that it replaces.

    It does not keep that tensor: Gloo's thread would free the memory at any time.
    """
    if isinstance(argument, torch.Tensor):
        if not argument.is_cuda:
            return argument
        found: Any = alias(argument)
        if flat and argument.is_contiguous():
            found = found.view(-1)
        found.forebay_original = weakref.ref(argument), argument.device
        return found
    if isinstance(argument, (list, tuple)):
        return [_on_host(each, flat=flat) for each in argument]
    return argument


def _on_device(result: Any) -> Any:
    """Return a result with the tensors of the device, or copies of deleted ones, in place of those over values."""
    if isinstance(result, torch.Tensor):
        find, device = getattr(result, "forebay_original", (None, None))
        if find is None:
            return result
        original = find()
        return result.to(device) if original is None else original
    if isinstance(result, (list, tuple)):
        return type(result)(map(_on_device, result))
    return result


def _with_tensors_of_device(names: NameReplacements) -> None:
    """Let finished work return tensors of the device.

    As with NCCL, the future is complete when it is returned, and its callbacks run in the thread that adds them.
    """
    work: Any = torch.distributed.Work
    get_future, get_result = work.get_future, work.result

    def future(self: Any) -> Any:
        found = get_future(self)
        if self not in _of_device:
            return found
        completed: torch.futures.Future[Any] = torch.futures.Future()
        try:
            completed.set_result(_on_device(found.wait()))
        except RuntimeError as error:  # of the transfer
            completed.set_exception(RuntimeError(str(error)))
        return completed

    def result(self: Any) -> Any:
        return _on_device(get_result(self))

    names.replace(work, "get_future", future)
    names.replace(work, "result", result)


def replace_process_groups(names: NameReplacements) -> None:
    """Let programs that ask for NCCL use Gloo."""
    if not torch.distributed.is_available():
        return
    module: Any = torch.distributed
    names.replace(module, "is_nccl_available", lambda: True)
    _with_tensors_of_device(names)
    _replace_backend(names)
    if not has_reducer_timer():
        names.replace(module.Logger, "set_runtime_stats_and_log", lambda self: None)  # noqa: ARG005 -- it reads the timer
    if not values.is_computed():  # it compares the shapes in tensors
        names.replace(module, "_verify_params_across_processes", lambda *_: None)
    asked: dict[str, str] = {}
    # The last one has copies of these names.
    for owner in (module, module.distributed_c10d, *filter(None, [sys.modules.get("torch.distributed.device_mesh")])):
        for name in ("init_process_group", "new_group"):
            if hasattr(owner, name):
                names.replace(owner, name, _with_gloo(getattr(owner, name), asked))
        if hasattr(owner, "get_backend"):
            names.replace(owner, "get_backend", _asked_backend(owner.get_backend, asked))


def _with_gloo(function: Callable[..., Any], asked: dict[str, str]) -> Callable[..., Any]:
    """Return a function that creates process groups, whose backend is Gloo for NCCL.

    `asked` gets the backend that the program names, by the name of the group.
    """
    parameters = signature(function)

    @wraps(function)
    def create(*args: Any, **keywords: Any) -> Any:
        given = parameters.bind(*args, **keywords)
        given.arguments.pop("device_id", None)  # binds the group to a device of NCCL
        backend = given.arguments.get("backend")
        if function.__name__ == "init_process_group" and (backend is None or "nccl" in str(backend)):
            _set_alone(given.arguments)
        given.arguments["backend"] = _gloo(backend)
        group = function(*given.args, **given.kwargs) or torch.distributed.group.WORLD
        if backend is not None and isinstance(group, torch.distributed.ProcessGroup):
            asked[group.group_name] = str(backend).lower()
        return None if function.__name__ == "init_process_group" else group

    return create


def _set_alone(arguments: dict[str, Any]) -> None:
    """Let a process without a launcher, which says its rank, be a group of one, and note that."""
    named = any(arguments.get(name, default) != default for name, default in _ALONE.items())
    named |= arguments.get("init_method") not in (None, "env://")
    if named or any(name in os.environ for name in ("RANK", "WORLD_SIZE")) or torch.distributed.is_initialized():
        return
    arguments.update(init_method=None, store=torch.distributed.HashStore(), rank=0, world_size=1)
    assumed_values.note(
        values.calling_line()[0], "a process group of one process, as RANK and WORLD_SIZE are not set: use torchrun"
    )


def _asked_backend(get_backend: Callable[..., Any], asked: dict[str, str]) -> Callable[..., Any]:
    """Return a function with the name of the backend that the program has asked for, in place of Gloo's."""

    @wraps(get_backend)
    def get(group: Any = None) -> Any:
        actual = get_backend(group)
        if actual != _GLOO:
            return actual
        world = torch.distributed.group.WORLD
        default = asked.get(world.group_name, actual)
        return torch.distributed.Backend(asked.get((group or world).group_name, default))

    return get


def _gloo(backend: Any) -> Any:
    """Return the backend to use in place of one."""
    if backend is None or "nccl" in str(backend):
        return None if backend is None and torch.distributed.is_initialized() else _GLOO
    return _GLOO if backend == "gloo" else backend
