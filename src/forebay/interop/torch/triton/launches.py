"""Launches of Triton's kernels on emulated devices: with values by the interpreter, else what they write is unknown.

# Note [Launches of kernels]
A launch arrives after Triton has compiled the kernel for the card, checked its shared memory and allocated scratch
memory. With values, it is executed at once, as operators are, and in the order of the program, which is that of a
stream; in a captured graph it is recorded, over the values of its arguments. Without values, what the kernel may write
becomes unknown: the arguments that its intermediate code stores to or, if that is not understood, all of them. An
argument that the device cannot access raises Triton's own error. Launches inside a region whose values come from
somewhere else are not executed.
Test: tests/interop/torch/triton/test_launches.py
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

import torch

from forebay.errors import ForebayWarning
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import memory_of
from forebay.interop.torch.devices.graph_capture import run_or_capture
from forebay.interop.torch.processes import checked_kernels
from forebay.interop.torch.triton.addressed_memory import memory_of_argument
from forebay.interop.torch.triton.arguments import Descriptor, OutsideAccess, Pointer
from forebay.interop.torch.triton.checks import note_access
from forebay.interop.torch.triton.target import Launch

__all__ = ["LOCK", "execute", "forget_reports", "without_values"]

LOCK = threading.RLock()  # Note [Language patched for one launch]
_logger = logging.getLogger("torch._higher_order_ops.triton_kernel_wrap")
_written: WeakKeyDictionary[Any, frozenset[str] | None] = WeakKeyDictionary()  # by the compiled source
_reported: set[tuple[str, int, str]] = set()


class _Thread(threading.local):
    skips = 0


_thread = _Thread()


@contextmanager
def without_values() -> Iterator[None]:
    """Execute no kernel that this thread launches in this block: its values come from somewhere else."""
    _thread.skips += 1
    try:
        yield
    finally:
        _thread.skips -= 1


def execute(launch: Launch) -> None:
    """Execute a launch: Note [Launches of kernels]."""
    if _thread.skips:
        return
    arguments = _named(launch)
    tensors: list[tuple[str, torch.Tensor]] = []
    given = {name: _read(each, name, at, tensors) for at, (name, each) in enumerate(arguments.items())}
    if not values.is_computed():
        _forget(launch, arguments, tensors)
        run_or_capture(_do_nothing, ())
        return
    from forebay.interop.torch.triton import interpreter  # imported late: it imports Triton's

    kinds = dict(launch.source.signature)

    def run() -> None:
        with LOCK:
            interpreter.interpret(launch.source.fn, launch.grid, given, kinds, _report)

    run_or_capture(run, [memory_of(each).values for _, each in tensors if each.is_cuda])


def _do_nothing() -> None:
    pass


def _named(launch: Launch) -> dict[str, Any]:
    """Return all arguments of a kernel by name. A launcher of Inductor passes no constants."""
    names = launch.source.fn.arg_names
    if len(launch.arguments) == len(names):
        return dict(zip(names, launch.arguments, strict=True))
    constants = {names[key[0]] if isinstance(key, tuple) else key: each
                 for key, each in launch.source.constants.items()}  # fmt: skip
    rest = iter(launch.arguments)
    return {name: constants[name] if name in constants else next(rest) for name in names}


def _read(argument: Any, name: str, at: int, tensors: list[tuple[str, torch.Tensor]]) -> Any:
    """Return an argument with pointers in place of tensors, which are added to a list. Raises Triton's ValueError."""
    kind = type(argument).__name__
    if kind == "TensorWrapper":  # of triton.reinterpret
        argument = argument.base
    if isinstance(argument, torch.Tensor):
        memory = memory_of_argument(argument, name)
        if memory is None:
            raise ValueError(f"Pointer argument (at {at}) cannot be accessed from Triton (cpu tensor?)")
        tensors.append((name, argument))
        return Pointer(argument.data_ptr(), memory)
    if kind == "TensorDescriptor":
        base = _read(argument.base, name, at, tensors)
        return Descriptor(base, argument.shape, argument.strides, argument.block_shape, argument.padding)
    if isinstance(argument, tuple):
        made = [_read(each, name, at, tensors) for each in argument]
        return type(argument)(*made) if hasattr(argument, "_fields") else tuple(made)
    return Pointer(argument.data_ptr(), None) if hasattr(argument, "data_ptr") else argument


def _forget(launch: Launch, arguments: dict[str, Any], tensors: list[tuple[str, torch.Tensor]]) -> None:
    """Make the values unknown that a kernel may write."""
    known = [(name, memory) for name, each in tensors if each.is_cuda
             and ((memory := memory_of(each)).known is not None or memory.assumed is not None)]  # fmt: skip
    if not known:
        return
    written = _written_arguments(launch, arguments)
    for name, memory in known:
        if written is None or name in written:
            memory.known = memory.assumed = None


def _written_arguments(launch: Launch, arguments: dict[str, Any]) -> frozenset[str] | None:
    """Return the names of the arguments that a kernel writes; None if its code is not understood."""
    source = launch.source
    if source not in _written:
        _written[source] = _analyzed(source.fn, arguments)
    return _written[source]


def _analyzed(function: Any, arguments: dict[str, Any]) -> frozenset[str] | None:
    if any(type(each).__name__ in ("TensorDescriptor", "TensorWrapper") or isinstance(each, tuple)
           for each in arguments.values()):  # fmt: skip
        return None
    analysis: Any = import_module("torch._higher_order_ops.triton_kernel_wrap")
    level = _logger.level
    _logger.setLevel(logging.ERROR)  # it then takes all arguments for written
    try:
        if (find := getattr(analysis, "identify_mutated_tensors", None)) is not None:
            return frozenset(find(function, arguments, {}))
        found = analysis.identify_accessed_tensors(function, arguments, {})
        return frozenset(each.name for each in found.read_writes.writes)
    except Exception:  # noqa: BLE001 -- PyTorch's private functions: then all are written
        return None
    finally:
        _logger.setLevel(level)


def forget_reports() -> None:
    """Report accesses outside the memory of tensors again."""
    _reported.clear()


def _report(access: OutsideAccess) -> None:
    """Report the first access of a line outside the memory of a tensor."""
    key = access.file, access.line, access.verb
    if key in _reported:
        return
    _reported.add(key)
    if checked_kernels.is_checking():
        note_access(access)
    warnings.warn(str(access), ForebayWarning, stacklevel=2)
