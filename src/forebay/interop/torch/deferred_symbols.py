"""Later import of what PyTorch needs for symbolic sizes, which most programs never have.

# Note [Symbolic sizes imported late]
PyTorch's Python functions for shapes ask `torch.fx.experimental.symbolic_shapes` about each condition. The first one
imports it, with SymPy: 470 modules and 0.35 s, only to get a plain `bool` back as it is. So its module begins with
functions that answer for plain values as PyTorch's do. Anything else, another attribute or an argument that is not
plain, executes the module, in the same object; then only PyTorch's own code is left. Functions that were imported
before pass on to it. Two functions import SymPy themselves, to ask whether numbers are expressions: until something
else has imported it, none is one. Rejected: a stand-in for the whole module, which programs that compile or export
would find; and one for SymPy, which programs import.
Test: tests/interop/torch/test_deferred_symbols.py::test_plain_values_have_the_answers_of_pytorch

This file imports the standard library only, as `import_hook.py`.
"""

from __future__ import annotations

import builtins
import gc
import operator
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce, wraps
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["CHANGES", "NAME", "LateLoader"]

NAME = "torch.fx.experimental.symbolic_shapes"
_SETTINGS = "torch.fx.experimental._config"
_PLAIN = (bool, int, float)
_lock = threading.RLock()
_executing: set[str] = set()


class LateLoader(Loader):
    """The loader of the module `NAME`, which executes it when it is needed, and then calls `after`."""

    def __init__(self, loader: Loader, after: Callable[[ModuleType], object]) -> None:
        self._loader, self._after = loader, after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with suppress(ImportError):
            import_module(_SETTINGS)  # which others find as an attribute once this module is imported
        vars(module).update(_answers(module))
        vars(module)[_EXECUTE] = self._execute
        module.__class__ = _LateModule

    def _execute(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # what programs and importlib.resources see
        vars(module)["__loader__"] = self._loader
        collects = gc.isenabled()
        gc.disable()  # as it makes objects that stay, and the search for others takes 0.1 s
        try:
            self._loader.exec_module(module)
        finally:
            if collects:
                gc.enable()
        self._after(module)

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)


_EXECUTE = "_forebay_execute"


class _LateModule(ModuleType):
    """The module before it is executed."""

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("__") and name != "__all__") or not _execute(self):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _execute(self)
        super().__setattr__(name, value)

    def __dir__(self) -> Sequence[str]:
        _execute(self)
        return dir(self) if type(self) is ModuleType else sorted(vars(self))


def _execute(module: ModuleType) -> bool:
    """Execute a module, once. Return False while that is under way in this thread."""
    with _lock:
        if type(module) is not _LateModule:
            return True
        if module.__name__ in _executing:
            return False
        _executing.add(module.__name__)
        try:
            vars(module)[_EXECUTE](module)
        except BaseException:
            vars(module).update(_answers(module))
            raise
        finally:
            _executing.discard(module.__name__)
        vars(module).pop(_EXECUTE, None)
        ModuleType.__setattr__(module, "__class__", ModuleType)
    return True


def _answers(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions that answer for plain values."""

    def own(name: str, *args: Any, **keywords: Any) -> Any:
        _execute(module)
        return getattr(module, name)(*args, **keywords)

    def of_bool(name: str) -> Callable[..., Any]:
        def answer(*args: Any, **keywords: Any) -> Any:
            if len(args) == 1 and type(args[0]) is bool and not keywords:
                return args[0]
            return own(name, *args, **keywords)

        return answer

    def guard_size_oblivious(expr: Any) -> Any:  # imported beside others, and deprecated
        return own("guard_size_oblivious", expr)

    def statically_known_false(x: Any) -> Any:
        return not x if type(x) is bool else own("statically_known_false", x)

    def sym_and(x: Any, *others: Any) -> Any:
        return reduce(operator.and_, others, x) if _are_bool(x, *others) else own("sym_and", x, *others)

    def sym_or(x: Any, *others: Any) -> Any:
        return reduce(operator.or_, others, x) if _are_bool(x, *others) else own("sym_or", x, *others)

    def sym_eq(x: Any, y: Any) -> Any:
        if type(x) is int and type(y) is int:
            return x == y
        are_lists = isinstance(x, (tuple, list)) and isinstance(y, (tuple, list))
        if are_lists and all(type(each) is int for each in (*x, *y)):
            return [*x] == [*y]
        return own("sym_eq", x, y)

    def is_nested_int(s: Any) -> Any:
        return False if type(s) in _PLAIN else own("is_nested_int", s)

    def has_guarding_hint(a: Any) -> Any:
        return True if type(a) in _PLAIN else own("has_guarding_hint", a)

    def guarding_hint_or_throw(a: Any) -> Any:
        return a if type(a) in (bool, int) else own("guarding_hint_or_throw", a)

    def guard_int(a: Any) -> Any:
        return a if type(a) is int else own("guard_int", a)

    named = (
        guard_size_oblivious,
        statically_known_false,
        sym_and,
        sym_or,
        sym_eq,
        is_nested_int,
        has_guarding_hint,
        guarding_hint_or_throw,
        guard_int,
    )
    of_bools = ("guard_or_false", "guard_or_true", "statically_known_true", "expect_true", "guard_bool")
    found = {each.__name__: each for each in named} | {name: of_bool(name) for name in of_bools}
    for name, each in found.items():
        each.__name__ = each.__qualname__ = name  # errors about arguments have it
    return found


def _ask_for_no_expressions(module: ModuleType) -> None:
    """Let the functions that import SymPy themselves import none. `module` is `torch._prims_common`."""
    sympy, functions = ModuleType("sympy"), ModuleType("torch.utils._sympy.functions")
    sympy.Basic = type("Basic", (), {})  # type: ignore[attr-defined]  # the only name that they use, of an expression
    functions.Max = max  # type: ignore[attr-defined]  # as above, of plain numbers
    stand_ins = {each.__name__: each for each in (sympy, functions)}

    def import_other(name: str, *args: Any) -> Any:
        return stand_ins[name] if name in stand_ins else builtins.__import__(name, *args)

    known = {**vars(builtins), "__import__": import_other}
    for name in ("elementwise_dtypes", "_is_non_overlapping_and_dense_or_false"):  # private functions of PyTorch
        function = getattr(module, name, None)
        if isinstance(function, FunctionType) and function.__closure__ is None:
            setattr(module, name, _until_imported(function, FunctionType(
                function.__code__, {**vars(module), "__builtins__": known}, name, function.__defaults__
            )))  # fmt: skip


def _until_imported(function: FunctionType, other: FunctionType) -> Callable[..., Any]:
    """Return a function that calls `other` until SymPy is imported."""
    other.__kwdefaults__ = function.__kwdefaults__

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        return (function if "sympy" in sys.modules else other)(*args, **keywords)

    return call


CHANGES: dict[str, Callable[[ModuleType], None]] = {"torch._prims_common": _ask_for_no_expressions}


def _are_bool(*values: Any) -> bool:
    return all(type(each) is bool for each in values)
