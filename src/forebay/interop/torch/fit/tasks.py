"""Runs on emulated cards, each in a Python process of its own, which any executor's worker starts and waits for."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forebay.config import ALLOCATOR_SETTINGS, EMULATE, Emulated
from forebay.errors import ForebayError
from forebay.interop.torch import on_import
from forebay.interop.torch.fit.results import FitResult

__all__ = ["IN_WORKER", "FitTask", "pack", "run_task"]

IN_WORKER = "FOREBAY_FIT_WORKER"  # set in the processes that run a task
_UNLIMITED = 1 << 42  # bytes of the card of the second run
_START = "from forebay.interop.torch.fit.worker import main; main()"


@dataclass(frozen=True, slots=True)
class FitTask:
    """One run: what to call, and on which card."""

    profile: str
    mode: str
    count: int = 1
    memory: int | None = None  # of each device; None: as the profile
    allocator_settings: str = ""
    timeout: float | None = None  # seconds
    parameters: Mapping[str, Any] = field(default_factory=dict)
    payload: bytes = b""  # the pickled function and its arguments
    script: tuple[str, ...] = ()  # or a script and its arguments
    main: str = ""  # the file of the module __main__ that the pickle needs
    path: tuple[str, ...] = ()  # sys.path
    folder: str = ""  # the working directory
    measures_need: bool = False  # the second run, with unlimited memory
    capacity: int = 0  # of the first run


def pack(function: Callable[..., Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a task that call a function. Raises ForebayError if it cannot be sent to a process."""
    main = ""
    try:
        try:
            import cloudpickle  # type: ignore[import-untyped]  # has no annotations

            payload = cloudpickle.dumps((function, dict(parameters)))
        except ImportError:
            payload = pickle.dumps((function, dict(parameters)))
            main = getattr(sys.modules["__main__"], "__file__", None) or ""
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ForebayError(
            f"{function!r} cannot be sent to another process: {error}. Pass a function of a module, or install "
            "cloudpickle for functions of a notebook and lambdas"
        ) from error
    folders = tuple(str(Path(each).absolute()) for each in sys.path)
    return {"payload": payload, "main": main and str(Path(main).absolute()), "path": folders, "folder": str(Path.cwd())}


def run_task(task: FitTask) -> FitResult:
    """Run a task in a new process; if it ran out of memory without values, again with unlimited memory."""
    started = time.monotonic()
    found = _run(task)
    if found.verdict == "out of memory" and task.mode == "shapes":
        whole = _run(replace(task, memory=_UNLIMITED, measures_need=True, capacity=found.capacity))
        if whole.fits or whole.settings:
            found = replace(found, needed=whole.peak_allocated, settings=whole.settings)
    return replace(found, parameters=task.parameters, seconds=time.monotonic() - started)


def _run(task: FitTask) -> FitResult:
    ours = str(Path(__file__).parents[4])
    environment = {name: value for name, value in os.environ.items() if name not in (on_import.VARIABLE, EMULATE.name)}
    emulated = Emulated("cuda", task.count, task.profile, memory=task.memory)
    environment |= {EMULATE.name: str(emulated), IN_WORKER: "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [ours, environment.get("PYTHONPATH", "")]))
    if task.allocator_settings:
        environment[ALLOCATOR_SETTINGS[0]] = task.allocator_settings
    with TemporaryDirectory(prefix="forebay-fit-") as folder:
        request, answer = Path(folder) / "task", Path(folder) / "result"
        request.write_bytes(pickle.dumps(task))
        try:
            done = subprocess.run(
                [sys.executable, "-c", _START, str(request), str(answer)], env=environment, cwd=task.folder or None,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=task.timeout,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return _failed(task, f"TimeoutError: the run took longer than {task.timeout} s")
        if answer.exists():
            result: FitResult = pickle.loads(answer.read_bytes())  # noqa: S301 -- written by the process above
            return result
    last = done.stdout.decode(errors="replace").strip().rpartition("\n")[2]
    return _failed(task, f"the process ended with status {done.returncode}: {last}")


def _failed(task: FitTask, message: str) -> FitResult:
    return FitResult(task.profile, task.parameters, False, 0, 0, 0, {}, message)
