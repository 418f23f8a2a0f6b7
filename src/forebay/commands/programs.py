"""The program of `fit` and `run` on the command line: a script, -m MODULE, -c CODE, or a command on PATH."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from forebay.commands import CommandError

__all__ = [
    "add_mode_arguments",
    "add_program_arguments",
    "argv_of",
    "is_isolated",
    "mark_program",
    "mode_sentence",
    "python_arguments",
]

_EXAMPLES = {None: ("script", "train.py"), "module": ("module", "-m MODULE"), "code": ("code", "-c CODE")}
_LAUNCHERS = {"torchrun": "torch.distributed.run"}  # modules of commands that may not be on PATH
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")


def add_mode_arguments(parser: argparse.ArgumentParser, condition: str = "") -> None:
    """Add the options that choose what PyTorch computes. `mode` is None by default, see `mode_sentence`."""
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--shapes-only", dest="mode", action="store_const", const="shapes",
        help=f"{condition}compute only shapes; a program that reads a value gets an assumed one (default)",
    )  # fmt: skip
    mode.add_argument(
        "--strict", dest="mode", action="store_const", const="strict",
        help=f"{condition}compute only shapes, and assume no values: a program that reads one does not finish",
    )  # fmt: skip
    mode.add_argument(
        "--compute", dest="mode", action="store_const", const="compute",
        help=f"{condition}compute the values on the CPU",
    )  # fmt: skip


def mode_sentence(mode: str, *, is_default: bool) -> str:
    """Return the first line of a result: what was computed, and how to choose otherwise."""
    if mode == "compute":
        return "With values, computed on the CPU (--compute)."
    if mode == "strict":
        return "Without values, and without assumptions about them (--strict)."
    reason = "as --compute was not given" if is_default else "as --shapes-only was given"
    return f"Without values, {reason}; values that are read are assumed."


def add_program_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the program and its arguments: `form` and `program`."""
    parser.add_argument("-m", dest="form", action="store_const", const="module", help="run a module, as python -m does")
    parser.add_argument("-c", dest="form", action="store_const", const="code", help="run the code, as python -c does")
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="SCRIPT [ARGS ...]",
        help="the program and its arguments: a file, a directory or zip file with __main__.py, - for standard input, "
        "or a command on PATH that is a Python script, such as torchrun",
    )  # fmt: skip


def mark_program(command: ModuleType, arguments: list[str]) -> list[str]:
    """Insert `--` before the program of -m or -c, and separate -mMODULE, so that argparse reads no option behind it."""
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    flags = {flag for action in parser._actions if action.nargs == 0 for flag in action.option_strings}  # noqa: SLF001 - the only list
    at = 0
    while at < len(arguments) and (word := arguments[at]).startswith("-") and word not in ("-", "--"):
        if word[:2] in ("-m", "-c"):
            rest = [word[2:]] if word[2:] else []
            return [*arguments[:at], word[:2], "--", *rest, *arguments[at + 1 :]]
        at += 1 if word in flags or "=" in word else 2
    return arguments


def argv_of(args: argparse.Namespace, command: str) -> tuple[str | None, list[str]]:
    """Return the form of the program, None for a script, and its words. A command on PATH becomes its script."""
    argv: list[str] = args.program[1:] if args.program[:1] == ["--"] else args.program
    form: str | None = args.form
    if not argv:
        kind, example = _EXAMPLES[form]
        raise CommandError(f"no {kind} to run: forebay {command} {example} (see forebay {command} --help)")
    if form is None and not os.path.lexists(argv[0]) and not os.path.dirname(argv[0]) and argv[0] != "-":  # noqa: PTH120 -- "./x" names a file
        return _command(argv, command)
    return form, argv


def python_arguments(form: str | None, argv: list[str]) -> tuple[str, ...]:
    """Return what follows `python` to run a program in a process of its own. Raises CommandError if it is missing."""
    first, *others = argv
    if form == "code":
        return ("-c", *argv)
    if form == "module":
        if not _has_package(first.partition(".")[0]):
            raise CommandError(f"cannot run the module {first!r}: there is none of that name")
        return ("-m", *argv)
    if first == "-":
        raise CommandError("cannot run standard input on several cards: name a file, or use -c CODE")
    if not Path(first).exists():
        raise CommandError(f"cannot read the script {first!r}: there is no such file, and no such command on PATH")
    return (str(Path(first).absolute()), *others)


def is_isolated() -> bool:
    """Return True if uv or pipx has made an environment for forebay alone: Note [Environments of programs]."""
    prefix = Path(sys.prefix)
    if (prefix / "uv-receipt.toml").exists() or (prefix / "pipx_metadata.json").exists():
        return True
    with suppress(OSError):
        made_by_uv = re.search(r"^uv = ", (prefix / "pyvenv.cfg").read_text(), re.MULTILINE)
        return made_by_uv is not None and re.match(r"archive-v\d+$", prefix.parent.name) is not None
    return False


def _command(argv: list[str], command: str) -> tuple[str | None, list[str]]:
    """Return the program that a command on PATH runs."""
    name, *others = argv
    if _PYTHON.fullmatch(name):
        return _python(others, name, command)
    folder = os.path.dirname(sys.executable)  # noqa: PTH120 -- of an environment that may not be active
    found = shutil.which(name, path=os.pathsep.join([folder, os.environ.get("PATH", os.defpath)]))
    if found is None and name in _LAUNCHERS and _has_package(_LAUNCHERS[name].partition(".")[0]):
        return "module", [_LAUNCHERS[name], *others]
    if found is None:
        return None, argv  # a script that is missing
    with Path(found).open("rb") as file:
        start = file.readline(500).decode(errors="replace")
    interpreter = start.removeprefix("#!").strip()
    # A shell script that executes Python is how installers write the first line of long paths.
    if not start.startswith("#!") or not ("python" in interpreter or interpreter == "/bin/sh"):
        raise CommandError(f"{found} is not a Python program: name the script that it runs, or -m MODULE")
    path = interpreter.split()[0]
    if os.path.basename(path) not in ("env", "sh") and not _is_ours(path):  # noqa: PTH119 -- a text
        raise CommandError(
            f"{found} belongs to another Python, {path}, in which forebay may be missing: run it with "
            f"{path} -m forebay {command}"
        )
    return None, [found, *others]


def _python(argv: list[str], name: str, command: str) -> tuple[str | None, list[str]]:
    """Return the program of `python train.py`."""
    forms = {"-m": "module", "-c": "code"}
    if argv and argv[0] in forms and argv[1:]:
        return forms[argv[0]], argv[1:]
    if argv and not argv[0].startswith("-"):
        return None, argv
    raise CommandError(f"cannot pass options to {name}: call forebay {command} with the script, -m MODULE or -c CODE")


def _is_ours(interpreter: str) -> bool:
    """Return True for the Python of this process, or a link to it in the same folder."""
    return os.path.dirname(interpreter) == os.path.dirname(sys.executable)  # noqa: PTH120 -- links are not followed


def _has_package(name: str) -> bool:
    try:
        return find_spec(name) is not None or Path(f"{name}.py").is_file() or Path(name).is_dir()
    except (ValueError, ImportError):  # of __main__; of a broken package
        return True
