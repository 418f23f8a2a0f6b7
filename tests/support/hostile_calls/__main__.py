"""A child process: python -m support.hostile_calls MODULE SEED CALLS LOG.

Calls every function, class, method, property and operator of a module, first each with each value, then at random.
Before each call, its description is written to the file LOG, where the parent finds it after a death.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import gc
import mmap
import operator
import pickle
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.hostile_calls.subjects import (
    TEMPLATES,
    classes,
    functions,
    is_safe,
    load,
    objects,
    parameters,
    real_arguments,
)
from support.hostile_calls.values import Reentry, values
from support.interrupts import catch_interrupts

KEPT = ("Block", "Mark", "HostBlock", "PinnedLease", "OperationStart", "ManagedTensor", "PyCapsule", "ThreadState")
CHANGES = {"seal", "in_context", "everywhere"}  # they replace NumPy's allocator: rarely called

_UNARY: dict[str, Callable[[Any], Any]] = {
    "repr": repr, "str": str, "hash": hash, "bool": bool, "len": len, "iter": iter, "list": list, "dict": dict,
    "int": int, "float": float, "bytes": bytes, "memoryview": memoryview, "next": next, "reversed": reversed,
    "call": lambda it: it(), "enter": lambda it: it.__enter__(), "exit": lambda it: it.__exit__(None, None, None),
    "copy": copy.copy, "deepcopy": copy.deepcopy, "weakref": weakref.ref, "dir": dir, "negative": operator.neg,
    "index": operator.index, "referents": gc.get_referents, "sizeof": sys.getsizeof, "await": lambda it: it.__await__(),
    **{f"pickle {protocol}": lambda it, protocol=protocol: pickle.dumps(it, protocol) for protocol in range(6)},
    "reduce": lambda it: it.__reduce__(), "reduce_ex": lambda it: it.__reduce_ex__(4),
    "getstate": lambda it: it.__getstate__(), "reduce_cython": lambda it: it.__reduce_cython__(),
    "new": lambda it: type(it).__new__(type(it)), "finalize": lambda it: it.__del__(),
}  # fmt: skip
_OPERATORS = (
    "eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "matmul", "and_", "or_", "xor", "mod", "pow", "truediv",
    "lshift", "iadd", "imul", "ior", "contains", "getitem", "delitem",
)  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, name) for name in _OPERATORS},
    "setitem": lambda it, value: operator.setitem(it, value, value), "isinstance": isinstance,
    "setstate": lambda it, value: it.__setstate__(value), "format": format,
    "setstate_cython": lambda it, value: it.__setstate_cython__(value),
    "class": lambda it, value: setattr(it, "__class__", type(value)), "call": lambda it, value: it(value),
}  # fmt: skip


class Log:
    """The description of the current call, in a file that survives the process."""

    def __init__(self, path: str) -> None:
        with Path(path).open("w+b") as file:
            file.truncate(4096)
            self._memory = mmap.mmap(file.fileno(), 4096)

    def __call__(self, text: str) -> None:
        self._memory[:4096] = text.encode("ascii", "backslashreplace")[:4095].ljust(4096, b"\0")


class Calls:
    """Hostile calls of one module."""

    def __init__(self, path: str, seed: int, log: Log) -> None:
        self.module = load(path)
        self.name = path.rsplit("/", 1)[-1]
        self.random = random.Random(seed)
        self.log, self.reenter = log, Reentry()
        self.values = values(self.reenter)
        self.kept: list[tuple[str, Any]] = []
        self.count = 0

    def systematic(self) -> None:
        """Call each function and method with each value as each argument, and every operator of each state."""
        for name, function in functions(self.module).items():
            self._each_value(name, lambda _, function=function: function, parameters(function))
        for name, kind in classes(self.module).items():
            self._each_value(name, lambda _, kind=kind: kind, 4)
            for number in range(12):
                self._operators(name, kind, number)
            for attribute in _attributes(kind):
                self._each_value(
                    f"{name}.{attribute}", lambda number, a=attribute, n=name, k=kind: self._bound(n, k, a, number), 4
                )

    def at_random(self, calls: int) -> None:
        """Call functions, methods and operators with random arguments, objects and states."""
        kinds = list(classes(self.module).items())
        known = list(functions(self.module).items())
        self.subject: tuple[str, type, Any] | None = None
        for _ in range(calls):
            self._try(lambda: self._random_call(kinds, known))

    def _random_call(self, kinds: list[tuple[str, type]], known: list[tuple[str, Any]]) -> None:
        if known and (not kinds or self.random.random() < len(known) / (len(known) + 4 * len(kinds))):
            name, function = self.random.choice(known)
            self._call(name, function, self._arguments(self.random.randrange(parameters(function) + 2)))
            return
        if self.subject is None or self.random.random() < 0.1:  # else a sequence of calls of one object
            name, kind = self.random.choice(kinds)
            found = objects(self.module, name, kind, self.random.randrange(256), self.reenter)
            self.subject = None if found is None else (name, kind, found)
            if self.subject is None:
                return
        name, kind, found = self.subject
        if self.random.random() < 0.1:
            self._operator(name, found)
            return
        attribute = self.random.choice(_attributes(kind))
        if attribute in CHANGES and self.random.random() < 0.9:
            return
        self._attribute(name, found, attribute)

    def _attribute(self, name: str, found: Any, attribute: str) -> None:
        if self.random.random() < 0.1:
            ((label, value),) = self._arguments(1)
            self._run(f"{name}.{attribute} = {label}", lambda: setattr(found, attribute, value), found)
            return
        bound = self._run(f"{name}.{attribute}", lambda: getattr(found, attribute), found)
        if callable(bound):
            count = (
                self.random.choice((0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 8))
                if self.random.random() < 0.3
                else parameters(bound)
            )
            self._call(f"{name}.{attribute}", bound, self._arguments(count), found)

    def _arguments(self, count: int) -> list[tuple[str, Any]]:
        made = []
        labels = list(self.values)
        for _ in range(count):
            if self.kept and self.random.random() < 0.25:
                made.append(self.random.choice(self.kept))
            elif self.random.random() < 0.2 and (kinds := list(classes(self.module).items())):
                name, kind = self.random.choice(kinds)
                number = self.random.randrange(64)
                made.append((f"{name}#{number}", objects(self.module, name, kind, number, self.reenter)))
            else:
                label = self.random.choice(labels)
                made.append((label, self.values[label]()))
        return made

    def _bound(self, name: str, kind: type, attribute: str, number: int) -> Any:
        found = objects(self.module, name, kind, number, self.reenter)
        self.reenter.subject = found
        return None if found is None else getattr(found, attribute, None)

    def _each_value(self, name: str, function: Callable[[int], Any], count: int) -> None:
        for number, (label, make) in enumerate(self.values.items()):
            for position in range(max(count, 1)):
                self._try(
                    lambda at=position, n=number, text=label, m=make: self._call_at(
                        name, function(n), at, count, text, m
                    )
                )

    def _try(self, call: Callable[[], Any]) -> None:
        """Call a function, which may be unable to make a value, or be interrupted."""
        catch_interrupts(call, BaseException)

    def _call_at(self, name: str, bound: Any, position: int, count: int, label: str, make: Callable[[], Any]) -> None:
        if callable(bound):
            chosen = [
                (label, make()) if position in (at, count - 1) else ("1", 1)
                for at in range(min(count, parameters(bound) + 1))
            ]
            self._call(name, bound, chosen)

    def _operators(self, name: str, kind: type, number: int) -> None:
        for label in (*_UNARY, *_BINARY):
            self._try(lambda text=label: self._operator_of(name, kind, number, text))

    def _operator_of(self, name: str, kind: type, number: int, label: str) -> None:
        found = objects(self.module, name, kind, number, self.reenter)
        if found is not None:
            self._operator(f"{name}#{number}", found, label)

    def _operator(self, name: str, found: Any, label: str | None = None) -> None:
        label = label or self.random.choice([*_UNARY, *_BINARY])
        if label == "call" and self.name == "_core":
            return
        if label in _UNARY:
            self._run(f"{label}({name})", lambda: _UNARY[label](found), found)
        else:
            ((text, value),) = self._arguments(1)
            self._run(f"{label}({name}, {text})", lambda: _BINARY[label](found, value), found)

    def _call(self, name: str, function: Any, arguments: list[tuple[str, Any]], subject: Any = None) -> None:
        full = f"{self.name}.{name}"
        texts, given = [text for text, _ in arguments], [value for _, value in arguments]
        named: dict[str, Any] = {}
        template = TEMPLATES.get(full, ()) if self.random.random() < 0.7 else ()
        if template and arguments:
            given, texts = list(copy.copy(template)), ["valid"] * len(template)
            given = [copy.deepcopy(each) if isinstance(each, (list, dict)) else each for each in template]
            named = (
                given.pop()
                if isinstance(given[-1], dict) and full in ("_dlpack.export_memory", "_segments.map_aligned")
                else {}
            )
            for text, value in arguments[: self.random.choice((1, 1, 2))]:
                position = self.random.randrange(len(given))
                given[position], texts[position] = value, text
        if not is_safe(full, given):
            given = real_arguments(full, self.module) or []
            texts = ["valid addresses"]
        self._run(f"{name}({', '.join(texts)})", lambda: function(*given, **named), subject)

    def _run(self, text: str, call: Callable[[], Any], subject: Any) -> Any:
        self.count += 1
        self.log(f"call {self.count}: {text}")
        if subject is not None:
            self.reenter.subject = subject
        try:
            found = call()
        except BaseException:  # noqa: BLE001 - every error is right; a death is not
            return None
        if type(found).__name__ in KEPT:
            self.kept.append((f"{text} -> {type(found).__name__}", found))
            if len(self.kept) > 30:
                del self.kept[self.random.randrange(20)]
        return found


def _attributes(kind: type) -> list[str]:
    """Return the names of a class that are its own, and those of objects that run code of it."""
    own = [name for each in kind.__mro__ if each.__module__ != "builtins" for name in vars(each)]
    skipped = {"__dict__", "__doc__", "__module__", "__pyx_vtable__", "__weakref__"}
    return sorted({*own, "__init__", "__new__"} - skipped)


@contextlib.contextmanager
def _in_another_thread(calls: Calls) -> Iterator[None]:
    """Collect garbage, and call the module in another thread at the same time."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.001):
            gc.collect(0)
            calls.reenter(3)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def main(path: str, seed: str, calls: str, log: str) -> None:
    """Run the calls."""
    faulthandler.enable()
    sys.unraisablehook = lambda _: None
    threading.excepthook = lambda _: None
    sys.setrecursionlimit(400)
    found = Calls(path, int(seed), Log(log))
    if int(seed) % 2:
        gc.set_threshold(3)  # finalizers run inside calls
    if int(seed) == 0:
        found.systematic()
    with _in_another_thread(found) if int(seed) % 3 == 2 else contextlib.nullcontext():
        found.at_random(int(calls))
    found.log("the end of the process")
    found.kept.clear()
    gc.collect()
    print(found.count)


if __name__ == "__main__":
    main(*sys.argv[1:])
