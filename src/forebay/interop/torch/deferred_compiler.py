"""Later import of PyTorch's compiler, which most programs never use.

# Note [Compiler imported late]
PyTorch marks functions that its compiler must not trace, and imports the compiler at the first call of one, such as the
constructor or the step of an optimizer: about a second, and 800 modules. Until something else imports it, nothing can
be traced, and the function alone does the same. So the marked functions are called without their mark until then, and
by PyTorch's own code from then on. Rejected: a stand-in for the module `torch._dynamo`, which all others would find.
Test: tests/interop/torch/test_deferred_compiler.py::test_optimizer_does_not_import_the_compiler

This file imports the standard library only, as `import_hook.py`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["CHANGES"]

_COMPILER = "torch._dynamo"
_KEPT = "__dynamo_disable"  # the attribute in which PyTorch keeps what it has made of a function


def _is_imported() -> bool:
    """Return True if the compiler can be used: Python lists a module before it has been executed."""
    return hasattr(sys.modules.get(_COMPILER), "graph_break") and hasattr(sys.modules.get(_COMPILER), "disable")


def _defer_marks(module: ModuleType) -> None:
    """Let the functions that are marked from now on import no compiler. `module` is `torch._compile`."""
    mark = getattr(module, "_disable_dynamo", None)
    if mark is None:  # a private function of PyTorch
        return

    def _disable_dynamo(fn: Callable[..., Any] | None = None, recursive: bool = True) -> Callable[..., Any]:
        if fn is None:
            return functools.partial(_disable_dynamo, recursive=recursive)
        marked: Callable[..., Any] = mark(fn, recursive)

        def call(*args: Any, **keywords: Any) -> Any:
            if not _is_imported():
                return fn(*args, **keywords)
            if getattr(fn, _KEPT, None) is call:
                delattr(fn, _KEPT)
            return marked(*args, **keywords)

        setattr(fn, _KEPT, call)  # after `mark`, which copies the attributes to its result
        return marked

    module._disable_dynamo = _disable_dynamo  # type: ignore[attr-defined]  # as above


def _defer_steps(module: ModuleType) -> None:
    """Let the steps of optimizers that are defined from now on import no compiler. `module` has their base class."""
    decorate = getattr(module, "_use_grad_for_differentiable", None)
    if decorate is None:  # as above
        return

    def _use_grad_for_differentiable(func: Callable[..., Any]) -> Callable[..., Any]:
        decorated: Callable[..., Any] = decorate(func)

        @functools.wraps(func)
        def step(*args: Any, **keywords: Any) -> Any:
            if _is_imported():
                return decorated(*args, **keywords)
            torch: Any = sys.modules["torch"]
            with torch.set_grad_enabled(args[0].defaults["differentiable"]):
                return func(*args, **keywords)

        return step

    module._use_grad_for_differentiable = _use_grad_for_differentiable  # type: ignore[attr-defined]  # as above


# By the name of the module, what changes it after its import, before PyTorch uses it.
CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "torch._compile": _defer_marks,
    "torch.optim.optimizer": _defer_steps,
}
