"""Runs a Python program in this process exactly as `python SCRIPT`, `python -m MODULE` or `python -c CODE` does."""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import sys
import textwrap
from collections.abc import Callable
from importlib.machinery import BuiltinImporter, ModuleSpec, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import cast

from forebay.commands import CommandError, ProgramError

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

_kept: list[ModuleType] = []  # original main module: CPython crashes if it is freed with the last traceback


class Program:
    """The program to run. A script is read here; a module is located by `execute`, as that imports its packages."""

    source: bytes

    def __init__(self, argv: list[str], form: str | None = None) -> None:
        self.argv: list[str] = argv
        self.name: str = argv[0]
        self.form: str = form or _form_of(self.name)
        if self.form in ("script", "input"):
            self.source = _read(self.name) if self.form == "script" else _read_input()

    def execute(self) -> None:
        """Run the program. Its exceptions propagate, and Python prints them without the frames of forebay."""
        main, ours = ModuleType("__main__"), sys.modules["__main__"]
        _kept.append(ours)
        if "__annotations__" in ours.__dict__:  # newer Pythons create it on demand
            main.__dict__.update(__annotations__={})
        main.__dict__["__builtins__"] = builtins
        try:
            # The same names in the same order as in Python's own main module.
            code = getattr(self, f"_{self.form}")(main)
            sys.modules["__main__"] = main
            exec(code, main.__dict__)  # noqa: S102 - runs the user's program
        except (SystemExit, CommandError, ProgramError):
            raise
        except BaseException:
            sys.excepthook = _without_forebay_frames(getattr(sys, "excepthook", sys.__excepthook__))
            raise

    def _script(self, main: ModuleType) -> CodeType:
        path = _absolute(self.name)
        main.__loader__ = SourceFileLoader("__main__", path)
        main.__dict__.update(__file__=path, __cached__=None)
        return self._compile(main, path, os.path.dirname(os.path.realpath(path)))  # noqa: PTH120 - as below

    def _input(self, main: ModuleType) -> CodeType:
        main.__loader__ = BuiltinImporter  # the class, as Python sets it
        main.__dict__.update(__file__="<stdin>", __cached__=None)
        return self._compile(main, "<stdin>", "")

    def _code(self, main: ModuleType) -> CodeType:
        main.__loader__ = BuiltinImporter
        text = textwrap.dedent(self.name) if sys.version_info >= (3, 14) else self.name
        self.source, self.argv = f"{text}\n".encode(errors="surrogateescape"), ["-c", *self.argv[1:]]
        return self._compile(main, "<string>", "")

    def _compile(self, main: ModuleType, file: str, folder: str) -> CodeType:
        sys.argv[:] = self.argv
        _set_first_path(folder)
        sys.modules["__main__"] = main
        return compile(self.source, file, "exec", dont_inherit=True)

    def _compiled(self, main: ModuleType) -> CodeType:
        path = _absolute(self.name)
        loader = SourcelessFileLoader("__main__", path)
        try:
            code = loader.get_code("__main__")
        except (ImportError, EOFError, ValueError) as error:
            raise ProgramError("RuntimeError: Bad magic number in .pyc file") from error
        except OSError as error:
            raise CommandError(f"cannot read the script {self.name!r}: {error.strerror}") from error
        main.__loader__ = loader
        main.__dict__.update(__file__=path, __cached__=None)
        sys.argv[:] = self.argv
        _set_first_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120 - as below
        return cast("CodeType", code)

    def _module(self, main: ModuleType) -> CodeType:
        _set_first_path(os.getcwd())  # noqa: PTH109 - as below
        sys.argv[:] = ["-m", *self.argv[1:]]  # as seen by packages that are imported on the way
        code = _found(main, lambda: runpy._get_module_details(self.name, runpy._Error))  # type: ignore[attr-defined]  # noqa: SLF001 - Python's own errors
        sys.argv[0] = str(main.__file__)
        return code

    def _archive(self, main: ModuleType) -> CodeType:
        path = os.getcwd() if self.name == "." else _absolute(self.name)  # noqa: PTH109 - as below
        if sys.flags.safe_path:
            sys.path.insert(0, path)  # the only case in which Python adds an entry
        _set_first_path(path)
        sys.argv[:] = self.argv
        return _found(main, lambda: runpy._get_main_module_details(runpy._Error))  # type: ignore[attr-defined]  # noqa: SLF001 - as above


def _form_of(name: str) -> str:
    if name == "-":
        return "input"
    try:
        if pkgutil.get_importer(_absolute(name)) is not None:
            return "archive"
    except ValueError:  # a null byte
        return "script"
    return "compiled" if name.endswith(".pyc") else "script"


def _found(main: ModuleType, find: Callable[[], tuple[str, ModuleSpec, CodeType]]) -> CodeType:
    """Find a module with runpy and set its names in the main module. Raises ProgramError with Python's message."""
    try:
        _, spec, code = find()
    except runpy._Error as error:  # type: ignore[attr-defined]  # noqa: SLF001 - as above
        raise ProgramError(f"{sys.executable}: {error}") from error
    main.__package__, main.__loader__, main.__spec__ = spec.parent, spec.loader, spec
    main.__dict__.update(__file__=spec.origin, __cached__=spec.cached)
    return code


def _read(name: str) -> bytes:
    try:
        with io.open_code(_absolute(name)) as file:
            return file.read()
    except OSError as error:
        raise CommandError(f"cannot read the script {name!r}: {error.strerror}") from error
    except ValueError as error:  # a null byte in the name
        raise CommandError(f"cannot read the script {name!r}: {error}") from error


def _read_input() -> bytes:
    if sys.stdin is None:
        raise CommandError("cannot read the program from standard input: it is closed")
    return sys.stdin.buffer.read()


def _absolute(name: str) -> str:
    try:
        return os.path.join(os.getcwd(), name)  # noqa: PTH109, PTH118 - a Path would normalise the name
    except OSError:  # the working directory does not exist, which Python tolerates, too
        return name


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
