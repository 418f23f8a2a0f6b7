"""Triton's kernels on emulated devices, from the beginning of a patch to its end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from importlib import import_module
from typing import Any

from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.interop.torch.import_hook import ImportHook
from forebay.interop.torch.triton import launches
from forebay.interop.torch.triton.checks import check_loaded
from forebay.interop.torch.triton.target import observed
from forebay.interop.torch.triton.tuning import replace_tuning

__all__ = ["replace_kernels"]


def replace_kernels(undo: ExitStack) -> None:
    """Execute the kernels that are launched from now on. `undo` receives what ends it."""
    undo.enter_context(observed(launches.execute))
    undo.callback(launches.forget_reports)
    undo.callback(_forget_answers)
    _forget_answers()
    if hasattr(sys.modules.get("triton"), "jit"):  # else it is not yet executed
        _replace(undo)
        return
    hook = ImportHook("triton", lambda _: _replace(undo))
    undo.callback(hook.remove)
    hook.install()


def _forget_answers() -> None:
    """Let PyTorch ask again whether Triton can be used on the devices."""
    for function in vars(sys.modules.get("torch.utils._triton", object)).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def _replace(undo: ExitStack) -> None:
    """Replace functions of Triton, which is imported."""
    replace_tuning(undo)  # Note [Configurations without measurements]
    names = NameReplacements()
    undo.callback(names.restore)
    check_loaded(names)
    function: Any = import_module("triton.runtime.jit").JITFunction
    if hasattr(function, "_do_compile"):
        names.replace(function, "_do_compile", _alone(function._do_compile))


def _alone(compile_kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that compiles while no kernel is interpreted: Note [Language patched for one launch]."""

    @wraps(compile_kernel)
    def run(*args: Any, **keywords: Any) -> Any:
        with launches.LOCK:
            return compile_kernel(*args, **keywords)

    return run
