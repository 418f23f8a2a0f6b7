"""Runs a Python program in this process exactly as `python SCRIPT` or `python -m MODULE` does."""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING

from forebay.commands import CommandError

if TYPE_CHECKING:
    from importlib.abc import InspectLoader

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

_kept: list[ModuleType] = []  # original main module: CPython crashes if it is freed with the last traceback


class Program:
    """The program to run. A script is read here; a module is located by `execute`, as that imports its packages."""

    def __init__(self, argv: list[str], *, module: bool) -> None:
        self.argv = argv
        self.name = argv[0]
        self.source = b""
        if not module:
            self.source = _read(self.name)
        self.module = module

    def execute(self) -> None:
        """Run the program. Its exceptions propagate, and Python prints them without the frames of forebay."""
        main, ours = ModuleType("__main__"), sys.modules["__main__"]
        _kept.append(ours)
        if "__annotations__" in ours.__dict__:  # newer Pythons create it on demand
            main.__dict__.update(__annotations__={})
        main.__dict__["__builtins__"] = builtins
        try:
            # The same names in the same order as in Python's own main module.
            code = self._module(main) if self.module else self._script(main)
            sys.modules["__main__"] = main
            exec(code, main.__dict__)  # noqa: S102 - runs the user's program
        except (SystemExit, CommandError):
            raise
        except BaseException:
            sys.excepthook = _without_forebay_frames(getattr(sys, "excepthook", sys.__excepthook__))
            raise

    def _script(self, main: ModuleType) -> CodeType:
        path = _absolute(self.name)
        main.__loader__ = SourceFileLoader("__main__", path)
        main.__dict__.update(__file__=path, __cached__=None)
        sys.argv[:] = self.argv
        _set_first_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120 - as below
        sys.modules["__main__"] = main
        return compile(self.source, path, "exec", dont_inherit=True)

    def _module(self, main: ModuleType) -> CodeType:
        _set_first_path(os.getcwd())  # noqa: PTH109 - as below
        sys.argv[:] = ["-m", *self.argv[1:]]  # as seen by packages that are imported on the way
        spec, code = _find(self.name)
        sys.argv[0] = str(spec.origin)
        main.__package__, main.__loader__, main.__spec__ = spec.parent, spec.loader, spec
        main.__dict__.update(__file__=spec.origin, __cached__=spec.cached)
        return code


def _read(name: str) -> bytes:
    try:
        with io.open_code(_absolute(name)) as file:
            return file.read()
    except IsADirectoryError as error:
        raise CommandError(f"{name!r} is a directory, not a script; a package is run with -m") from error
    except OSError as error:
        raise CommandError(f"cannot read the script {name!r}: {error.strerror}") from error
    except ValueError as error:  # a null byte in the name
        raise CommandError(f"cannot read the script {name!r}: {error}") from error


def _absolute(name: str) -> str:
    try:
        return os.path.join(os.getcwd(), name)  # noqa: PTH109, PTH118 - a Path would normalise the name
    except OSError:  # the working directory does not exist, which Python tolerates, too
        return name


def _find(name: str) -> tuple[ModuleSpec, CodeType]:
    from importlib import util

    try:
        spec = util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError) as error:
        raise CommandError(f"cannot run the module {name!r}: {error}") from error
    if spec is None:
        raise CommandError(f"cannot run the module {name!r}: no runnable module of that name found")
    loader: InspectLoader | None = getattr(spec.loader, "get_code", None) and spec.loader  # type: ignore[assignment]  # has get_code
    code = loader.get_code(spec.name) if loader else None
    if code is None:
        raise CommandError(f"cannot run the module {name!r}: it has no Python code")
    return spec, code


def _set_first_path(folder: str) -> None:
    if not sys.flags.safe_path:  # with safe_path, Python adds no first entry, neither for forebay nor for the program
        sys.path[0] = folder


def _without_forebay_frames(show: Hook) -> Hook:
    """Return a one-time sys.excepthook that removes the frames of forebay. Python calls it once they are added."""

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = show
        while trace is not None and trace.tb_frame.f_code is not Program.execute.__code__:
            trace = trace.tb_next
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        value.__traceback__ = sys.last_traceback = trace
        try:
            show(kind, value, trace)
        except SystemExit:
            raise
        except BaseException as broken:  # noqa: BLE001 - printed as Python does, without the frames of forebay
            inner = broken.__traceback__ and broken.__traceback__.tb_next
            sys.stderr.write("Error in sys.excepthook:\n")
            sys.__excepthook__(type(broken), broken.with_traceback(inner), inner)
            sys.stderr.write("\nOriginal exception was:\n")
            sys.__excepthook__(kind, value, trace)

    return hook
