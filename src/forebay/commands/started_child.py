"""Start of a Python process that a program under `forebay run` starts: it is recorded once it imports NumPy.

# Note [Started children]
Processes of subprocess, of the start methods spawn and forkserver, of joblib's loky and of pytest-xdist begin with a
new interpreter. The functions that start processes add one variable and a folder of PYTHONPATH to their environment
(Note [Environment of started processes]), whose `sitecustomize` loads this file. Most of such processes allocate no
array, so that nothing of forebay is imported before NumPy is. The environment of the program itself does not change:
the variable and the folder are removed here before the program of this process sees them.
Rejected: a start file in site-packages, which other environments and installations without forebay lack; and
recording from the beginning, which costs each process a quarter of a second.
Test: tests/process/test_run_started.py::test_process_has_its_record_however_it_is_started

This file imports the standard library only, and is loaded by its path.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["begin"]


class _Child:
    """The state of this process."""

    def __init__(self, path: str, log: Any, use_forebay: Callable[[], None]) -> None:
        self.path, self.log, self._use_forebay = path, log, use_forebay
        self._session: Any = None
        self._has_begun = False

    def note_beginning(self, command: str) -> bool:
        """Note that this process begins."""
        return bool(self.log.append(self.path, self.log.BEGAN, os.getpid(), command))

    def after_fork(self) -> None:
        """Note a forked child. A recorded process does so itself."""
        if not self._has_begun:
            self.note_beginning(self.log.FORK)

    def record(self, _: ModuleType | None = None) -> None:
        """Begin the recording, once NumPy and, if its import has begun, forebay are imported. Never raises."""
        own = sys.modules.get("forebay")
        if self._has_begun or "numpy" not in sys.modules or _is_importing(own):
            return
        self._has_begun = True
        try:
            self._use_forebay()
            self._session = import_module("forebay.commands.run_child").begin(self.path)
        except Exception as error:  # noqa: BLE001 -- such as of another Python: the process runs without a record
            self.log.append(self.path, self.log.FAILED, os.getpid(), f"{type(error).__name__}: {error}")

    def finish(self) -> None:
        """Write the record, as the last exit handler."""
        if self._session is not None:
            self._session.finish()
        elif self.log.options(self.path).startswith(f'{{"pid": {os.getpid()},'):
            self.log.remove(self.path)  # the program has replaced itself by one that imports no NumPy


def begin(load: Callable[[str], Any], use_forebay: Callable[[], None], startup: str) -> None:
    """Let this process be recorded. `load` loads a file of forebay; `startup` is the folder of `sitecustomize`."""
    log = load("commands/process_log.py")
    path = os.environ.pop(log.VARIABLE)
    _remove_path(startup)
    child = _Child(path, log, use_forebay)
    if not child.note_beginning(" ".join(sys.orig_argv)):  # the program has ended
        return
    atexit.register(child.finish)
    os.register_at_fork(after_in_child=child.after_fork)
    hook = load("interop/torch/import_hook.py").ImportHook
    for name in ("numpy", "forebay"):  # forebay imports NumPy in the middle of its own import
        hook(name, child.record).install()
    reach_processes(load, log, path, startup)


def reach_processes(
    load: Callable[[str], Any], log: Any, path: str, startup: str, environment: dict[str, str] | None = None
) -> None:
    """Let the processes that this one starts be recorded, too, and note them in the log."""
    variables = {**(os.environ if environment is None else environment), log.VARIABLE: path}

    def note(pid: int, words: list[str]) -> None:
        log.append(path, log.STARTED, pid, " ".join(words))

    load("interop/torch/processes/started_processes.py").install(variables, startup, after=note)


def _remove_path(startup: str) -> None:
    """Remove the folder from PYTHONPATH, which the program must not see."""
    rest = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each != startup]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)


def _is_importing(module: ModuleType | None) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
