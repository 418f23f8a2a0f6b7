"""Start of a Python process that ignores environment variables (-I, -E, -S): installs the emulation, runs the program.

`python -I isolated_start.py [SCRIPT | -c CODE | -m MODULE | -] [ARGS ...]` behaves as Python does without this file. It
imports the standard library only. See Note [Environment of started processes].
"""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

__all__ = ["main"]

_STARTUP = "../startup/sitecustomize.py"
_kept: list[ModuleType] = []  # this module, whose functions run


def main() -> None:
    """Install the emulation, and become the program."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 -- pathlib is slow to import
    try:
        _begin(os.path.normpath(os.path.join(here, _STARTUP)))  # noqa: PTH118 -- as above
    except Exception as error:  # noqa: BLE001 -- such as of a Python without forebay: the program runs all the same
        sys.stderr.write(f"forebay: this process runs without it: {error}\n")
    own = len(sys.argv)
    arguments = sys.argv[1:]
    if sys.orig_argv[-own:] == [sys.orig_argv[-own], *arguments]:
        del sys.orig_argv[-own]  # the name of this file
    _kept.append(sys.modules["__main__"])
    form = arguments[0] if arguments else "-"
    if form == "-m":
        _run_module(arguments)
    elif form == "-c":
        _execute(f"{arguments[1]}\n", "<string>", ["-c", *arguments[2:]], "")
    elif form == "-":
        _run_input(arguments or [""])
    else:
        _run_script(arguments)


def _begin(startup: str) -> None:
    spec = spec_from_file_location("_forebay_startup", startup)
    module: Any = module_from_spec(spec)  # type: ignore[arg-type]  # the file exists
    spec.loader.exec_module(module)  # type: ignore[union-attr]  # as above
    module.begin()


def _set_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _execute(source: Any, file: str, argv: list[str], folder: str) -> None:
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if not file.startswith("<"):
        main.__dict__.update(__file__=file, __cached__=None)
    sys.argv[:] = argv
    _set_path(folder)
    sys.modules["__main__"] = main
    exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 -- the program


def _run_module(arguments: list[str]) -> None:
    import runpy

    sys.modules["__main__"] = ModuleType("__main__")
    sys.argv[:] = ["-m", *arguments[2:]]
    _set_path(os.getcwd())  # noqa: PTH109 -- as above
    runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]  # what `python -m` calls


def _run_input(arguments: list[str]) -> None:
    if sys.stdin is not None and sys.stdin.isatty():
        import code

        sys.argv[:] = arguments
        _set_path("")
        code.interact()
    elif sys.stdin is not None:
        _execute(sys.stdin.buffer.read(), "<stdin>", arguments, "")


def _run_script(arguments: list[str]) -> None:
    path = arguments[0]
    if os.path.isdir(path) or path.endswith((".pyc", ".zip", ".pyz")):  # noqa: PTH112 -- as above
        import runpy

        sys.argv[:] = arguments
        if not sys.flags.safe_path:
            del sys.path[0]  # of this file; the function inserts its own
        runpy.run_path(path, run_name="__main__")
        return
    absolute = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118 -- as above
    try:
        with open(path, "rb") as file:  # noqa: PTH123 -- as above
            source = file.read()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {absolute!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    _execute(source, absolute, arguments, os.path.dirname(os.path.realpath(path)))  # noqa: PTH120 -- as above


if __name__ == "__main__":
    main()
