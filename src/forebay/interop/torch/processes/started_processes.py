"""Hooks of forebay in every Python process that this process starts, whatever environment and options it gets.

# Note [Environment of started processes]
Processes get the emulation through environment variables, which a program
drops with `env={}` or `env={"PYTHONPATH": ...}`, and which Python ignores with the options -I, -E and -S. On a real
machine such a process has the GPU all the same. The functions that start processes are therefore replaced where Python
has one of each kind: missing variables are added, and a Python with one of these options runs `isolated_start`, which
runs the program. What a shell or another program starts is not reached: Note [Unseen processes].
Test: tests/interop/torch/processes/test_started_processes.py::test_process_counts_with_any_options_and_environment

This file imports the standard library only: `sitecustomize` loads it by its path in each Python process that the
program starts.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import wraps
from typing import Any

__all__ = ["OwnVariables", "install", "is_python", "with_start"]

_START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "isolated_start.py")  # noqa: PTH100, PTH118, PTH120 -- pathlib is slow to import
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?[td]?(\.exe)?$")
_IGNORING = frozenset("IES")
_PREFIX = "FOREBAY_"
_PATH = "PYTHONPATH"
_is_installed = False


class OwnVariables:
    """The variables that processes need, as they are when the program begins.

    `startup` is the folder of `sitecustomize`; `more` has names of further variables, such as those that disable
    services.
    """

    def __init__(self, environment: Mapping[str, str], startup: str, more: Sequence[str] = ()) -> None:
        self._startup = startup
        self._values = {
            name: value
            for name, value in environment.items()
            # The channel is a descriptor of the first process.
            if name in more or (name.startswith(_PREFIX) and name != "FOREBAY_REHEARSAL_CHANNEL")
        }

    def missing(self, environment: Mapping[Any, Any]) -> dict[str, str]:
        """Return what an environment lacks, whose names and values are texts or bytes."""
        found = {os.fsdecode(name): value for name, value in environment.items()}
        lacking = {name: value for name, value in self._values.items() if name not in found}
        paths = os.fsdecode(found.get(_PATH, ""))
        if self._startup not in paths.split(os.pathsep):
            lacking[_PATH] = os.pathsep.join(filter(None, [self._startup, paths]))
        return lacking

    def complete(self, environment: Mapping[Any, Any] | None) -> Mapping[Any, Any] | None:
        """Return an environment with what it lacks; itself, also None for that of this process, if it lacks nothing."""
        given = os.environ if environment is None else environment
        lacking = self.missing(given)
        if not lacking:
            return environment
        rest = {name: value for name, value in given.items() if os.fsdecode(name) not in lacking}
        return rest | lacking


def is_python(program: Any) -> bool:
    """Return True for the path of an interpreter."""
    return _PYTHON.match(os.path.basename(os.fsdecode(program))) is not None  # noqa: PTH119 -- as above


def with_start(program: Any, arguments: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments with which a Python that ignores environment variables starts with the emulation.

    They begin with the name of the program, and are unchanged for other programs and other options.
    """
    if not is_python(program):
        return arguments
    texts = [os.fsdecode(each) for each in arguments]
    at, options, ignores = 1, texts[:1], False
    while at < len(texts) and texts[at].startswith("-") and texts[at] != "-":
        word = texts[at]
        if word.startswith("--"):
            if word != "--check-hash-based-pycs":
                return arguments  # --help, --version
            options += texts[at : at + 2]
            at += 2
            continue
        flags, letter, value = _split(word)
        if letter in ("V", "h", "?"):
            return arguments
        ignores |= not _IGNORING.isdisjoint(flags)
        if letter in ("c", "m"):
            options += [f"-{flags}"] if flags else []
            rest = [f"-{letter}", *([value] if value else []), *texts[at + 1 :]]
            return [*options, _START, *rest] if ignores else arguments
        with_next = 2 if letter and not value else 1  # -X and -W
        options += texts[at : at + with_next]
        at += with_next
    return [*options, _START, *texts[at:]] if ignores and texts[at : at + 1] != [_START] else arguments


def _split(word: str) -> tuple[str, str, str]:
    """Return the flags of a word of options, the letter that ends them or has a value, and the value behind it."""
    for at, letter in enumerate(word[1:], 1):
        if letter in "cmXWVh?":
            return word[1:at], letter, word[at + 1 :]
    return word[1:], "", ""


def install(
    environment: MutableMapping[str, str],
    startup: str,
    more: Sequence[str] = (),
    before: Callable[[], object] | None = None,
    after: Callable[[int, list[str]], object] | None = None,
) -> None:
    """Replace the functions that start processes, once. They raise no errors of forebay.

    Parameters
    ----------
    environment : MutableMapping of str to str
        The environment of this process.
    startup : str
        The folder of `sitecustomize`.
    more : sequence of str, optional
        As of `OwnVariables`.
    before : callable, optional
        Called before each process is started.
    after : callable, optional
        Called with the number and the words of each process that was started. Those of os.system have no number.
    """
    global _is_installed  # noqa: PLW0603 -- the functions of the process
    if _is_installed or os.name != "posix":
        return
    _is_installed = True
    own = OwnVariables(environment, startup, more)
    note = before or (lambda: None)
    started = after or (lambda _pid, _words: None)
    _replace_fork_exec(own, note, started)
    _replace_spawns(own, note, started)
    _replace_execs(own)
    _replace_system(own, note)


def _attempt(change: Callable[..., Any], *given: Any) -> Any:
    """Return the changed arguments; the last of those given if they are nonsense, which the function itself refuses."""
    try:
        return change(*given)
    except Exception:  # noqa: BLE001 -- as above
        return given[-1]


def _replace_fork_exec(
    own: OwnVariables, note: Callable[[], object], started: Callable[[int, list[str]], object]
) -> None:
    import _posixsubprocess

    start = _posixsubprocess.fork_exec

    @wraps(start)
    def fork_exec(
        arguments: Any, programs: Any, close: Any, passed: Any, folder: Any, environment: Any, *more: Any
    ) -> int:
        note()
        arguments = _attempt(lambda given: with_start(programs[0], given), arguments)
        environment = _attempt(lambda given: _listed(own, given), environment)
        pid: int = start(arguments, programs, close, passed, folder, environment, *more)
        _attempt(lambda words: started(pid, [*map(os.fsdecode, words)]), arguments)
        return pid

    _posixsubprocess.fork_exec = fork_exec
    known = sys.modules.get("subprocess")  # which has a name of its own for it
    if known is not None and hasattr(known, "_fork_exec"):
        known._fork_exec = fork_exec  # type: ignore[attr-defined]  # a private function


def _listed(own: OwnVariables, environment: Sequence[bytes] | None) -> Sequence[bytes] | None:
    """Return an environment in the form of `fork_exec` with what it lacks."""
    given = None if environment is None else dict(each.split(b"=", 1) for each in environment)
    found = own.complete(given)
    if found is given or found is None:
        return environment
    return [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in found.items()]


def _replace_spawns(own: OwnVariables, note: Callable[[], object], started: Callable[[int, list[str]], object]) -> None:
    for name in ("posix_spawn", "posix_spawnp"):
        start = getattr(os, name, None)
        if start is not None:
            setattr(os, name, _spawning(own, start, note, started))


def _spawning(
    own: OwnVariables,
    start: Callable[..., int],
    note: Callable[[], object],
    started: Callable[[int, list[str]], object],
) -> Callable[..., int]:
    @wraps(start)
    def spawn(path: Any, arguments: Any, environment: Any, **options: Any) -> int:
        note()
        arguments, environment = _attempt(with_start, path, arguments), _attempt(own.complete, environment)
        pid = start(path, arguments, environment, **options)
        _attempt(lambda words: started(pid, [*map(os.fsdecode, words)]), arguments)
        return pid

    return spawn


def _replace_execs(own: OwnVariables) -> None:
    execv, execve = os.execv, os.execve

    @wraps(execv)
    def exec_program(path: Any, arguments: Any, /) -> Any:
        environment = _attempt(own.complete, None)
        if environment is None:
            return execv(path, _attempt(with_start, path, arguments))
        return execve(path, _attempt(with_start, path, arguments), environment)

    @wraps(execve)
    def exec_with_environment(path: Any, argv: Any, env: Any) -> Any:
        return execve(path, _attempt(with_start, path, argv), _attempt(own.complete, env))

    os.execv, os.execve = exec_program, exec_with_environment


def _replace_system(own: OwnVariables, note: Callable[[], object]) -> None:
    system = os.system

    @wraps(system)
    def run(command: Any) -> int:
        note()
        return system(_attempt(lambda given: _with_exports(own, given), command))

    os.system = run


def _with_exports(own: OwnVariables, command: Any) -> Any:
    lacking = own.missing(os.environ)
    if not lacking:
        return command
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in lacking.items())
    return f"export {exports}; ".encode() + os.fsencode(command)
