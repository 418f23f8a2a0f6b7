"""The way by which a program under `forebay run` reaches the processes that it starts: Note [Started children]."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from forebay.commands import process_log

__all__ = ["is_python", "reach_processes", "write_log"]

_OWN = Path(__file__).parents[1]
_STARTUP = _OWN / "interop/torch/startup"


def write_log(output: Path, options: Mapping[str, Any]) -> Path:
    """Create the log of the program's processes, with what each of them needs to know. Raises OSError."""
    path = output / process_log.NAME
    process_log.create(str(path), json.dumps({"pid": os.getpid(), "output": str(output), **options}))
    return path


def reach_processes(path: Path) -> None:
    """Let the processes that this one starts be recorded, and note them in the log."""
    _load("commands/started_child.py").reach_processes(_load, process_log, str(path), str(_STARTUP))


def is_python(program: str) -> bool:
    """Return True for the path of an interpreter, by which a program may replace itself."""
    return _load("interop/torch/processes/started_processes.py").is_python(program)  # type: ignore[no-any-return]  # a module


@cache
def _load(file: str) -> ModuleType:
    """Load a file that imports the standard library only, without the packages around it, which take 0.1 s."""
    path = _OWN / file
    spec = spec_from_file_location(f"_forebay_{path.stem}", path)
    module: Any = module_from_spec(spec)  # type: ignore[arg-type]  # the file exists
    spec.loader.exec_module(module)  # type: ignore[union-attr]  # as above
    return module  # type: ignore[no-any-return]  # a module
