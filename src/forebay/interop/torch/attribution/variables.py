"""Tensors that the variables of a program hold, by the name of the variable.

# Note [Variables are read without a trace]
A report of memory must not change memory. Until Python 3.12, `frame.f_locals` of a function makes a dict that the frame
keeps, so that each variable of it stays alive after the program has deleted it; `locals()` of the program returns the
same dict. So the dict is emptied after it was copied, and functions whose code may call `locals()` are not read. No
code of the program is executed either: objects are told by their type, not by `isinstance`, which asks for `__class__`;
the methods of dict and list are called on the base class, which a subclass cannot override; and names are compared only
if their type is str. Rejected: `gc.get_referrers`, which takes 0.1 s for each object, and knows no names.
Test: tests/interop/torch/attribution/test_variables.py::test_variables_are_deleted_as_without_a_walk
"""

from __future__ import annotations

import dis
import functools
import inspect
import logging
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from forebay.interop.torch.attribution.user_frames import is_library

__all__ = ["HeldTensor", "Variable", "tensors_of_program", "variables_of"]

_MOST = 40_000  # objects that are looked at, which takes 30 ms
_DEPTH = 12
_READ_LOCALS = {"locals", "vars", "dir", "eval", "exec", "f_locals"}
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_PLAIN = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.CodeType,
          types.BuiltinFunctionType, torch.optim.Optimizer, logging.Logger)  # fmt: skip
# Frames of a test runner have each test of the run, through which a walk would go first, and nothing of the program.
_TEST_RUNNER = ("-packages/_pytest/", "-packages/pluggy/", "-packages/pytest/")
_STAND_INS = "forebay.interop.torch.extensions."  # their classes are those of other packages
_HIDDEN_PARTS = ("_parameters", "_buffers", "_non_persistent_buffers_set", "_is_full_backward_hook")
_NO_SNAPSHOT = sys.version_info >= (3, 13)  # of the variables: PEP 667


class Variable(NamedTuple):
    """The holder of a tensor: a variable, an entry of a container, an exception or a closure."""

    name: str  # of a variable, an attribute or an entry, such as "self.history" and "stats['loss']"
    file: str  # where the variable is
    function: types.CodeType | None  # that has the variable; None for one of a module
    through: str = ""  # "closure" or "exception", if it holds the tensor in such a way
    detail: str = ""  # name of the exception, or of the function


class HeldTensor(NamedTuple):
    """A tensor, the variable that holds it, and the container that has it, with its key in a dict."""

    tensor: torch.Tensor
    variable: Variable
    container: Any
    key: Any


class _Item(NamedTuple):
    value: Any
    variable: Variable
    depth: int
    container: Any = None
    key: Any = None


def tensors_of_program(frame: types.FrameType | None) -> Iterator[HeldTensor]:
    """Yield the tensors that variables of the program hold, nearest first, each once.

    `frame` is the innermost one of the current thread. Variables of functions that run come first, then those of
    modules of the program, and what exceptions keep.
    """
    queue = deque(_roots(frame))
    seen: set[int] = set()
    kept: list[Any] = []  # so that no number of an object is used again during the walk
    entered: dict[type, bool] = {}
    count = 0
    while queue and count < _MOST:
        item = queue.popleft()
        value = item.value
        kind = type(value)
        if kind in _SIMPLE or id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        count += 1
        if issubclass(kind, torch.Tensor):
            yield HeldTensor(value, item.variable, item.container, item.key)
        elif item.depth < _DEPTH:
            if kind not in entered:
                entered[kind] = _is_entered(kind)
            if entered[kind]:
                queue.extend(each for each in _parts(item, kind) if type(each.value) not in _SIMPLE)


def _is_entered(kind: type) -> bool:
    """Return True if objects of a type may hold tensors of the program.

    A session or an emulation, which a program may have in a variable, holds all that forebay knows, and none of them.
    """
    if issubclass(kind, _PLAIN):
        return False
    module = type.__dict__["__dict__"].__get__(kind).get("__module__")
    own = type(module) is str and module.startswith("forebay.") and not module.startswith(_STAND_INS)
    return not own or issubclass(kind, BaseException)


def _roots(frame: types.FrameType | None) -> Iterator[_Item]:
    stack, namespaces = [], {}
    while frame is not None:
        source = frame.f_code.co_filename
        if not is_library(source) and not any(runner in source for runner in _TEST_RUNNER):
            stack.append(frame)
        frame = frame.f_back
    for each in stack:
        for name, value in variables_of(each):
            if not name.isidentifier():  # of a comprehension, or of a rewritten assert statement
                continue
            yield _Item(value, Variable(name, each.f_code.co_filename, each.f_code), 0)
        if each.f_code.co_flags & inspect.CO_OPTIMIZED and _is_program_file(each.f_code.co_filename):
            namespaces[id(each.f_globals)] = each.f_globals
    for module in [*sys.modules.values()]:
        names = getattr(module, "__dict__", None) if type(module) is types.ModuleType else None
        if names is not None and _is_of_program(names):
            namespaces[id(names)] = names
    for names in namespaces.values():
        file = names.get("__file__")
        for name, value in [*names.items()]:
            if type(name) is str and not name.startswith("__"):
                yield _Item(value, Variable(name, file if type(file) is str else "", None), 0)
    for name in ("last_exc", "last_value"):  # of an interactive session
        if issubclass(type(error := getattr(sys, name, None)), BaseException):
            yield _Item(error, Variable(f"sys.{name}", "", None), 0)
    if (error := sys.exception()) is not None:
        yield _Item(error, Variable("", "", None), 0)


def _is_of_program(names: dict[str, Any]) -> bool:
    file = names.get("__file__")
    return names.get("__name__") == "__main__" or (type(file) is str and _is_program_file(file))


def _is_program_file(file: str) -> bool:
    return not is_library(file) and "-packages/" not in file


def variables_of(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Return the variables of a frame: Note [Variables are read without a trace]."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:  # a module or a class
        return [(name, value) for name, value in [*frame.f_locals.items()] if type(name) is str and name[:2] != "__"]
    if _NO_SNAPSHOT:
        return [*frame.f_locals.items()]
    if _reads_locals(code):
        return []
    names = frame.f_locals
    found = [*names.items()]
    names.clear()
    return found


@functools.cache
def _reads_locals(code: types.CodeType) -> bool:
    """Return True if a function may have the dict of its own variables."""
    if _READ_LOCALS.isdisjoint(code.co_names):
        return False
    loads = (each for each in dis.get_instructions(code) if each.argval in _READ_LOCALS)
    return any(each.opname in _LOADS or each.argval == "f_locals" for each in loads)  # "eval" is a method of modules


def _parts(item: _Item, kind: type) -> Iterator[_Item]:
    """Yield what an object holds."""
    value, variable, depth = item.value, item.variable, item.depth + 1
    if issubclass(kind, dict):
        for key, each in [*dict.items(value)]:
            name = f"{variable.name}[{key!r}]" if type(key) is str and depth == 1 else variable.name
            yield _Item(each, variable._replace(name=name), depth, value, key)
    elif issubclass(kind, (list, tuple, set, frozenset, deque)):
        base = next(each for each in (list, tuple, set, frozenset, deque) if issubclass(kind, each))
        for each in [*base.__iter__(value)]:
            yield _Item(each, variable, depth, value)
    elif issubclass(kind, BaseException):
        yield from _exception(value, variable, depth)
    elif kind is types.FunctionType:
        names = value.__code__.co_freevars
        for name, cell in zip(names, value.__closure__ or (), strict=False):
            yield from _cell(cell, _closure(variable, value, name), depth)
        for each in [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]:
            yield _Item(each, variable, depth)
    elif kind is types.CellType:
        yield from _cell(value, variable, depth)
    elif kind is types.MethodType:
        yield _Item(value.__self__, variable, depth)
        yield _Item(value.__func__, variable, depth)
    elif issubclass(kind, functools.partial):
        for each in (functools.partial.func, functools.partial.args, functools.partial.keywords):
            yield _Item(each.__get__(value), variable, depth)
    elif kind is types.GeneratorType:
        if value.gi_frame is not None and not value.gi_running:
            for _, each in variables_of(value.gi_frame):
                yield _Item(each, variable, depth)
    else:
        yield from _attributes(value, kind, variable, depth)


def _cell(cell: types.CellType, variable: Variable, depth: int) -> Iterator[_Item]:
    try:
        yield _Item(cell.cell_contents, variable, depth)
    except ValueError:  # the variable has no value
        return


def _closure(variable: Variable, function: types.FunctionType, name: str) -> Variable:
    if variable.through:
        return variable
    code = function.__code__
    if not _is_program_file(code.co_filename):
        return variable
    return Variable(name, code.co_filename, code, "closure", function.__qualname__)


def _exception(error: BaseException, variable: Variable, depth: int) -> Iterator[_Item]:
    kind = type(error).__name__
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        for name, each in variables_of(frame):
            yield _Item(
                each, Variable(name, frame.f_code.co_filename, frame.f_code, "exception", f"{kind} {variable.name}"),
                depth,
            )  # fmt: skip
        traceback = traceback.tb_next
    for each in (error.__cause__, error.__context__, error.args):
        yield _Item(each, variable, depth)


def _attributes(value: Any, kind: type, variable: Variable, depth: int) -> Iterator[_Item]:
    is_module = issubclass(kind, torch.nn.Module)
    for name, each in _dict_of(value, kind):
        if is_module and name in _HIDDEN_PARTS:
            continue
        if type(each) in _SIMPLE or (type(each) in _CONTAINERS and not each):
            continue
        is_named = variable.name.count(".") < 3 and not name.startswith("__")
        attribute = variable.name if not is_named or name == "_modules" else f"{variable.name}.{name}"
        yield _Item(each, variable._replace(name=attribute), depth)
    for base in type.mro(kind) if type(kind) is type else ():
        for member in base.__dict__.values():
            if type(member) is types.MemberDescriptorType and member.__objclass__ is base:  # of __slots__
                try:
                    each = member.__get__(value)
                except AttributeError:  # no value
                    continue
                yield _Item(each, variable._replace(name=f"{variable.name}.{member.__name__}"), depth)


def _dict_of(value: Any, kind: type) -> list[tuple[str, Any]]:
    """Return the attributes, without a call of a method or a property of their class."""
    for base in type.__dict__["__mro__"].__get__(kind):
        found = type.__dict__["__dict__"].__get__(base).get("__dict__")
        if found is not None:
            if type(found) is not types.GetSetDescriptorType:
                return []
            names = found.__get__(value)
            return [each for each in [*names.items()] if type(each[0]) is str] if type(names) is dict else []
    return []


_SIMPLE = frozenset((str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size))
_CONTAINERS = frozenset((dict, OrderedDict, list, tuple, set))  # whose truth executes no code of the program
