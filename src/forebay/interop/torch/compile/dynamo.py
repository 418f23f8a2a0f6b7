"""Dynamo, which traces programs: what it knows of replaced functions, and what it must not trace.

# Note [Tables by function]
Dynamo and TorchScript keep tables by function object. A function that a patch has replaced is not in them, so that a
graph would break there, and one that was replaced remains in them after the patch. The tables are therefore cleared
when functions are replaced and when they are restored, and Dynamo skips the kernels of emulated devices, which it would
trace when graphs call them. Rejected: changing the functions in place (`__code__`), as most are C functions.
Test: tests/interop/torch/compile/test_dynamo.py::test_kernels_are_executed_not_traced

# Note [Hooks are not traced]
A program is traced as if forebay did not look at it: the same graphs, no break, no recompilation and no warning. So
nothing is a hook of PyTorch, of which Dynamo warns and which it traces. The call of a module is replaced instead, and
Dynamo takes the replacement for PyTorch's own. What it meets inside a graph returns at once, because
`torch.compiler.is_compiling()` is a constant there; what it meets as the first frame of a graph is left out
(`skip_code`), so that it begins at the frame that the program calls. Rejected: the constant alone, as Dynamo then
compiles the replacement with the value True, and the modules of the program are not seen any more.
Test: tests/interop/torch/compile/test_graphs.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from importlib import import_module
from operator import attrgetter
from typing import Any

import torch

from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.interop.torch.import_hook import ImportHook

__all__ = [
    "call_after_import",
    "follow_devices",
    "forget_compiled",
    "forget_functions",
    "observe_calls",
    "skip_own_files",
    "unless_compiling",
]

_DYNAMO = "torch._dynamo"
_CACHES = {  # functions that keep such tables, by module: Note [Tables by function]
    "torch.overrides": ("_get_overridable_functions",),
    "torch._dynamo.trace_rules": ("get_torch_obj_rule_map",),
    "torch._dynamo.variables.torch": ("get_overridable_functions", "TorchInGraphFunctionVariable._get_handlers"),
}
_INTERFACE = "torch._dynamo.device_interface"  # a class with the functions of torch.cuda, some by other names:
_RENAMED = {
    "exchange_device": "_exchange_device",
    "maybe_exchange_device": "_maybe_exchange_device",
    "get_raw_stream": "_cuda_getCurrentRawStream",
}
_FACES = ("forebay.accelerator", "forebay.cuda", "forebay.memory", "forebay.names", "forebay.random")
_CALLS = ("torch._dynamo.utils", "torch._dynamo.variables.nn_module")  # have the call of modules by the name:
_CALL = "unpatched_nn_module_call"


def call_after_import(function: Callable[[], object], undo: ExitStack) -> None:
    """Call a function when Dynamo is imported, at once if it is. `undo` receives what forgets the function."""
    if hasattr(sys.modules.get(_DYNAMO), "reset"):  # else it is not yet executed
        function()
        return
    hook = ImportHook(_DYNAMO, lambda _: function())
    undo.callback(hook.remove)
    hook.install()


def skip_own_files(undo: ExitStack) -> None:
    """Let Dynamo execute forebay's functions, as it executes those in C++. `undo` receives what ends the waiting.

    Functions that replace those of PyTorch are traced inside a graph, as these are.
    """
    call_after_import(_skip_own_files, undo)


def _skip_own_files() -> None:
    rules = import_module(f"{_DYNAMO}.trace_rules")
    if not rules.check_file(__file__).skipped:  # once in a process
        rules.add("forebay")
    files = [__file__, *(import_module(name).__file__ or "" for name in _FACES)]
    rules.BUILTIN_INLINE_WHEN_CALLED.update(each.removesuffix("__init__.py") for each in files)


def forget_functions() -> None:
    """Clear tables of PyTorch's functions, some of which have been replaced."""
    for name, functions in _CACHES.items():
        if (module := sys.modules.get(name)) is not None:
            for function in functions:
                attrgetter(function)(module).cache_clear()


def follow_devices() -> None:
    """Let the compiler ask the present functions of torch.cuda about cards: it keeps those that it has imported."""
    module = sys.modules.get(_INTERFACE)
    interface: Any = getattr(module, "CudaInterface", None)
    if interface is None:
        return
    for name, value in [*vars(interface).items()]:
        function = value.__func__ if isinstance(value, staticmethod) else value
        if not name.startswith("__") and callable(function) and function.__module__ != _INTERFACE:
            owner = torch._C if name in _RENAMED and _RENAMED[name].startswith("_cuda_") else torch.cuda
            new = getattr(owner, _RENAMED.get(name, name), None)
            if new is not None:
                setattr(interface, name, new if isinstance(new, type) else staticmethod(new))


def forget_compiled() -> None:
    """Clear what Dynamo has compiled, and the tables. The graphs belong to emulated devices that end."""
    follow_devices()
    if (dynamo := sys.modules.get(_DYNAMO)) is not None:
        dynamo.reset()
    forget_functions()


def unless_compiling(observe: Callable[..., object], undo: ExitStack) -> Callable[..., None]:
    """Return a hook that calls a function, except while Dynamo traces: Note [Hooks are not traced]."""

    def hook(*arguments: Any, **keywords: Any) -> None:
        if not torch.compiler.is_compiling():
            observe(*arguments, **keywords)

    _leave_out(hook, undo)
    return hook


def observe_calls(
    enter: Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], object],
    leave: Callable[[torch.nn.Module, Any], object],
    undo: ExitStack,
) -> None:
    """Call a function before each call of a module, with its arguments, and another one with its result afterwards.

    The result is None after an exception. `undo` receives what ends the observation.
    """
    call = torch.nn.Module.__call__

    @wraps(call)
    def __call__(module: torch.nn.Module, /, *arguments: Any, **keywords: Any) -> Any:  # noqa: N807 -- its name
        if torch.compiler.is_compiling():
            return call(module, *arguments, **keywords)
        enter(module, arguments, keywords)
        result = None
        try:
            result = call(module, *arguments, **keywords)
        finally:
            leave(module, result)
        return result

    names = NameReplacements()
    undo.callback(_restore_calls, call)
    undo.callback(names.restore)
    names.replace(torch.nn.Module, "__call__", __call__)
    call_after_import(lambda: _set_call(__call__), undo)
    _leave_out(__call__, undo)


def _restore_calls(call: Callable[..., Any]) -> None:
    if _DYNAMO in sys.modules:
        _set_call(call)


def _set_call(call: Callable[..., Any]) -> None:
    """Let Dynamo take a function for the call of modules."""
    for name in _CALLS:
        if hasattr(module := sys.modules.get(name), _CALL):
            setattr(module, _CALL, call)


def _leave_out(function: Any, undo: ExitStack) -> None:
    """Let Dynamo begin no graph at a function, but at those that it calls."""
    call_after_import(lambda: import_module(f"{_DYNAMO}.eval_frame").skip_code(function.__code__), undo)
