"""Loops of the program as its source shows them: what ends them, and which lines that depends on.

# Note [Loops that only assumed values end]
A loop that waits for a value (`while not converged`, `while True` with `if error < tolerance: break`) may never end, as
no value is computed; a long training loop that reads its loss in each turn looks the same from outside: the same line,
the same memory. What differs is what ends them. Each exit of a loop (a part of its condition, a `break`, a `return`)
depends on lines: those of its tests, and those that assign the names in them, and so on. If each exit depends on a line
that has read assumed values, nothing else ends the loop; a counter, a limit of time, an iterator, a generator that
yields or a caught exception does. Rejected: to count reads without a change of memory, which ended training loops of
more than 10,000 steps; to trace each line, which costs more than the program.
Test: tests/interop/torch/assumptions/test_program_loops.py::test_loop_ends_by_itself_or_not
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = ["Loop", "check_at", "loops_around"]

_ENDLESS_ITERABLES = {"count", "cycle", "itertools.count", "itertools.cycle"}
_ENDS_OF_PROGRAMS = {"exit", "quit", "sys.exit", "os._exit"}
_ADDING = {"add", "append", "appendleft", "extend", "insert", "update"}  # methods that put values into their object
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_Lines = frozenset[int]


@dataclass(frozen=True, slots=True)
class Loop:
    """A `while`, or a `for` over an endless iterable."""

    first: int
    last: int
    condition: _Lines  # the lines of the condition of a `while`
    exits: tuple[_Lines, ...]  # for each way to end it, the lines that it depends on
    ends_otherwise: bool  # by what does not depend on values, such as an exception that is caught

    def is_ended_by(self, lines: set[int]) -> bool:
        """Return True if each of its exits depends on one of some lines, or it has none."""
        return not self.ends_otherwise and all(not lines.isdisjoint(each) for each in self.exits)

    def depends_on(self, line: int) -> bool:
        """Return True if one of its exits depends on a line."""
        return any(line in each for each in self.exits)


@dataclass(slots=True)
class _Assignment:
    targets: set[str]
    used: set[str]
    lines: set[int]
    counts: bool  # it adds a constant


@dataclass(slots=True)
class _Body:
    """The contents of a loop: its reads, exits and calls."""

    tests: list[list[ast.expr]] = field(default_factory=list)  # of each exit
    assignments: list[_Assignment] = field(default_factory=list)
    ends_otherwise: bool = False


def loops_around(file: str, line: int) -> Iterator[Loop]:
    """Yield the loops that contain a line of a file, innermost first."""
    for loop in _loops(file):
        if loop.first <= line <= loop.last:
            yield loop


def check_at(file: str, line: int) -> frozenset[bool] | None:
    """Return the values for which the check at a line passes, of each condition on it; None if there is no check.

    A check is an `assert`, or an `if` that raises.
    """
    return _checks(file).get(line)


@lru_cache(maxsize=64)
def _parse(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=64)
def _loops(file: str) -> tuple[Loop, ...]:
    tree = _parse(file)
    found = [] if tree is None else [_loop(each) for each in ast.walk(tree) if _is_endless(each)]
    return tuple(sorted(found, key=lambda each: each.last - each.first))


@lru_cache(maxsize=64)
def _checks(file: str) -> dict[int, frozenset[bool]]:
    tree = _parse(file)
    found: dict[int, frozenset[bool]] = {}
    for each in () if tree is None else ast.walk(tree):
        if isinstance(each, ast.Assert):
            _add_check(found, each, each.test, passes=True)
        elif isinstance(each, ast.If) and any(isinstance(inner, ast.Raise) for inner in each.body):
            _add_check(found, each.test, each.test, passes=False)
    return found


def _add_check(found: dict[int, frozenset[bool]], whole: ast.AST, test: ast.expr, *, passes: bool) -> None:
    for line in _lines_of(whole):
        found.setdefault(line, frozenset())
    for condition, value in _conditions(test, value=passes):
        for line in _lines_of(condition):
            found[line] |= {value}


def _conditions(test: ast.expr, *, value: bool) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the conditions in a test, each with the value for which the test has its own."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _conditions(test.operand, value=not value)
    elif isinstance(test, ast.BoolOp):
        for each in test.values:
            yield from _conditions(each, value=value)
    else:
        yield test, value


def _is_endless(node: ast.AST) -> bool:
    if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
        return ast.unparse(node.iter.func) in _ENDLESS_ITERABLES
    return isinstance(node, ast.While)


def _loop(node: ast.AST) -> Loop:
    assert isinstance(node, (ast.While, ast.For))  # noqa: S101 -- see `_is_endless`
    body = _Body()
    condition: frozenset[int] = frozenset()
    if isinstance(node, ast.While):
        condition = frozenset(_lines_of(node.test))
        if not (isinstance(node.test, ast.Constant) and node.test.value):
            body.tests += [[each] for each in _parts(node.test, ast.And)]
        _read_expression(node.test, body, [])
    else:
        _assign(body, node.target, node.iter, node.iter, [])
    for each in node.body:
        _read_statement(each, body, [], is_inner=False)
    exits = tuple(_lines_behind(tests, body.assignments) for tests in body.tests)
    return Loop(node.lineno, node.end_lineno or node.lineno, condition, exits, body.ends_otherwise)


def _read_statement(node: ast.stmt, body: _Body, tests: list[ast.expr], *, is_inner: bool) -> None:
    """Collect exits and assignments of a statement, which is executed if some tests say so."""
    if isinstance(node, _SCOPES):
        return
    if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and not is_inner) or _ends_program(node):
        body.tests += [[*tests[:-1], each] for each in _parts(tests[-1], ast.Or)] if tests else []
        body.ends_otherwise |= not tests
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            _assign(body, target, node.value, node, tests, keeps=isinstance(node, ast.AugAssign))
    elif isinstance(node, ast.For):
        _assign(body, node.target, node.iter, node.iter, tests)
    elif (changed := _added_to(node)) is not None:
        _assign(body, changed, node.value, node, tests, keeps=True)  # type: ignore[attr-defined]  # an ast.Expr
    if isinstance(node, (ast.If, ast.While)):
        tests = [*tests, node.test]
    inner = is_inner or isinstance(node, (ast.For, ast.While, ast.AsyncFor))
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            _read_statement(child, body, tests, is_inner=inner)
        elif isinstance(child, ast.ExceptHandler):
            before = len(body.tests)
            for each in child.body:
                _read_statement(each, body, tests, is_inner=is_inner)
            body.ends_otherwise |= len(body.tests) > before  # what raises the exception is not known
        elif isinstance(child, ast.match_case):
            for each in child.body:
                _read_statement(each, body, [*tests, *_subjects(node)], is_inner=is_inner)
        elif isinstance(child, ast.expr):
            _read_expression(child, body, tests)


def _parts(test: ast.expr, operator: type[ast.boolop]) -> list[ast.expr]:
    """Return the parts of `a and b` or, with `Or`, of `a or b`, each of which decides alone; also behind a `not`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _parts(test.operand, ast.Or if operator is ast.And else ast.And)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, operator):
        return [part for each in test.values for part in _parts(each, operator)]
    return [test]


def _subjects(node: ast.stmt) -> list[ast.expr]:
    return [node.subject] if isinstance(node, ast.Match) else []


def _read_expression(node: ast.expr, body: _Body, tests: list[ast.expr]) -> None:
    for each in ast.walk(node):
        if isinstance(each, (ast.Yield, ast.YieldFrom, ast.Await)):
            body.ends_otherwise = True  # the caller may stop
        elif isinstance(each, ast.NamedExpr):
            _assign(body, each.target, each.value, each, tests)


def _assign(
    body: _Body, target: ast.expr, value: ast.expr, whole: ast.AST, tests: list[ast.expr], *, keeps: bool = False
) -> None:
    used, lines = _names(value), _lines_of(whole)
    for test in tests:  # what decides whether it is executed
        used |= _names(test)
        lines |= _lines_of(test)
    targets = set(_targets(target))
    counts = isinstance(whole, ast.AugAssign) and isinstance(whole.value, ast.Constant)
    body.assignments.append(_Assignment(targets, used | targets if keeps else used, lines, counts))


def _lines_behind(tests: list[ast.expr], assignments: list[_Assignment]) -> _Lines:
    """Return the lines that the tests of an exit depend on."""
    names: set[str] = set()
    lines: set[int] = set()
    counters = {name for each in assignments if each.counts for name in each.targets}
    for test in tests:
        names |= _names(test)
        atoms = [atom for part in _parts(test, ast.And) for atom in _parts(part, ast.Or)]
        if any(counters.isdisjoint(_names(each)) for each in atoms):  # else it reads nothing, as its line may
            lines |= _lines_of(test)
    is_new = True
    while is_new:
        is_new = False
        for each in assignments:
            if not each.targets.isdisjoint(names) and not (each.used <= names and each.lines <= lines):
                names |= each.used
                lines |= each.lines
                is_new = True
    return frozenset(lines)


def _added_to(node: ast.stmt) -> ast.expr | None:
    """Return the object to which a statement such as `losses.append(loss)` adds values."""
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _ADDING:
        return call.func.value
    return None


def _ends_program(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Call) and ast.unparse(value.func) in _ENDS_OF_PROGRAMS


def _targets(node: ast.expr) -> Iterator[str]:
    """Yield the names that an assignment changes."""
    if isinstance(node, (ast.Tuple, ast.List)):
        for each in node.elts:
            yield from _targets(each)
    elif isinstance(node, (ast.Subscript, ast.Starred)):
        yield from _targets(node.value)
    elif name := _dotted(node):
        yield name


def _names(node: ast.AST) -> set[str]:
    """Return the names in an expression, also `a` and `a.b` of `a.b.c`. The length of a list says nothing of values."""
    found: set[str] = set()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        return found
    if name := _dotted(node):
        parts = name.split(".")
        return {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    for child in ast.iter_child_nodes(node):
        found |= _names(child)
    return found


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def _lines_of(node: ast.AST) -> set[int]:
    first: int = getattr(node, "lineno", 0)
    last: int | None = getattr(node, "end_lineno", None)
    return set(range(first, (last or first) + 1))
