"""Functions of Triton's language, rewritten so that Python executes them.

# Note [Kernels as functions of Python]
Triton compiles the source of a decorated function. Its interpreter calls the function itself, which works only for
functions that were decorated while an environment variable was set: a kernel that was decorated before calls other
decorated functions, which then raise, and names that were imported from Triton's language remain those of the compiler.
So each call in the source is rewritten to a call of a function that finds what is called. A number that is assigned
once is a constant in compiled code and stays one; floating-point numbers that are assigned again become tensors, which
have a type. The function is compiled with the file and the lines of the source, so that errors name them, and shares
the globals and the closure of the original: nothing is added to them.
Test: tests/interop/torch/triton/test_kernel_code.py
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

__all__ = ["Language", "executable", "is_rewritten"]

_FIND, _METHOD, _VALUE = _NAMES = ("forebay find", "forebay method", "forebay value")  # no names of a program
_DEFINITION = re.compile(r"^[ \t]*def\s+\w+\s*\(", re.MULTILINE)


class Language(NamedTuple):
    """The functions that rewritten kernels call.

    Attributes
    ----------
    find : callable
        Return what a call of an object calls.
    method : callable
        Return what a call of an attribute of an object calls.
    value : callable
        Return a floating-point number as a tensor, and anything else as it is.
    """

    find: Callable[[Any], Any]
    method: Callable[[Any, str], Any]
    value: Callable[[Any], Any]


class _Rewriter(ast.NodeTransformer):
    """Rewrites the body of a function: Note [Kernels as functions of Python]."""

    def __init__(self, definition: ast.FunctionDef) -> None:
        names = [each.id for each in ast.walk(definition) if isinstance(each, ast.Name)
                 and isinstance(each.ctx, ast.Store)]  # fmt: skip
        self._assigned = Counter(names)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func
        self.generic_visit(node)
        if isinstance(called, ast.Attribute):
            node.func = _call(_METHOD, called.value, ast.Constant(called.attr))
        else:
            node.func = _call(_FIND, node.func)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if any(isinstance(each, ast.Name) and self._assigned[each.id] > 1 for each in node.targets):
            node.value = _call(_VALUE, node.value)
        return node


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [*arguments], [])


_made: WeakKeyDictionary[FunctionType, tuple[str, Language, Callable[..., Any]]] = WeakKeyDictionary()


def executable(decorated: Any, language: Language) -> Callable[..., Any]:
    """Return the function of a `triton.JITFunction`, rewritten to call a language.

    Raises ValueError if its source is not one function.
    """
    function: FunctionType = decorated.fn
    source: str = decorated.src
    known = _made.get(function)
    if known is not None and known[0] == source and known[1] is language:
        return known[2]
    lines = "".join(decorated.raw_src)
    definition = _DEFINITION.search(lines)
    before = lines.count("\n", 0, definition.start()) if definition is not None else 0
    made = _rewritten(function, source, decorated.starting_line_number + before, language)
    _made[function] = source, language, made
    return made


def _rewritten(function: FunctionType, source: str, line: int, language: Language) -> Callable[..., Any]:
    tree = ast.parse(source)
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise ValueError(f"the source of {function.__qualname__} is not a function")  # noqa: TRY004 -- of the text
    definition.decorator_list = []
    definition.returns = None
    given = definition.args
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs):
        each.annotation = None
    given.defaults, given.kw_defaults = [], [None] * len(given.kwonlyargs)
    rewriter = _Rewriter(definition)
    definition.body = [rewriter.visit(statement) for statement in definition.body]
    free = {**dict(zip(_NAMES, language, strict=True)), **_closure(function)}
    outer = ast.FunctionDef(
        "outer", ast.arguments([], [ast.arg(name) for name in free], None, [], [], None, []), [definition], []
    )
    if hasattr(outer, "type_params"):
        outer.type_params = []
    tree.body = [outer]
    ast.fix_missing_locations(tree)
    ast.increment_lineno(tree, line - 1)
    module = compile(tree, function.__code__.co_filename, "exec", dont_inherit=True)
    code = _inner(_inner(module, "outer"), definition.name)
    cells = tuple(each if isinstance(each := free[name], CellType) else CellType(each) for name in code.co_freevars)
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


def _closure(function: FunctionType) -> dict[str, Any]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _inner(code: CodeType, name: str) -> CodeType:
    return next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name)


def is_rewritten(code: CodeType) -> bool:
    """Return True for the code of a rewritten function that calls others."""
    return _FIND in code.co_freevars or _METHOD in code.co_freevars
