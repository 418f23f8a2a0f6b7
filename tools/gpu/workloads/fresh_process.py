"""Processes that have imported PyTorch but have never used the GPU, one for each measurement.

# Note [Fork before CUDA]
Importing PyTorch and transformers takes longer than most workloads run, so it is done once: this process imports, and
each measurement runs in a fork of it. CUDA cannot be used in a fork of a process that has called its driver, even only
to count devices. This process therefore calls no function of torch.cuda, PYTORCH_NVML_BASED_CUDA_CHECK makes the
packages that ask for devices at import ask NVML, and if the driver was opened nevertheless, or a fork reports it,
processes are started afresh.
Test: tests/house/test_gpu_truth.py::test_refused_fork_is_repeated_afresh
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["FreshProcesses", "Running"]

_DRIVER = "/dev/nvidia-uvm"  # CUDA opens it, NVML does not
_PARENT_DIED = 1  # PR_SET_PDEATHSIG
_KILLED = 5.0  # seconds for a killed process to end; one that is stuck in the driver does not
_TAIL = 4000  # bytes of a log that are read


class Running:
    """A process that runs a function, and its limit."""

    def __init__(self, process: Any, log: Path, seconds: float) -> None:
        self._process = process
        self._log = log
        self._start = time.monotonic()
        self._seconds = seconds

    def problem(self) -> str:
        """Wait until the process has ended, or kill it at its limit. Return what went wrong, or an empty text."""
        self._process.join(max(0.0, self._start + self._seconds - time.monotonic()))
        code = self._process.exitcode
        if code is None:
            self.stop()
            return f"stopped after {self._seconds:.0f} s{self._where()}"
        if code < 0:
            return f"ended by {_signal_name(-code)}{self._where()}"
        return f"ended with {code}: {self._last_line()}" if code else ""

    def stop(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join(_KILLED)

    def _where(self) -> str:
        """Return where the process was, as faulthandler wrote it: the innermost line that is one of these programs'."""
        lines = [each.strip() for each in self._tail() if each.startswith('  File "')]
        ours = [each for each in lines if f"{os.sep}workloads{os.sep}" in each and "fresh_process" not in each]
        return f" in {(ours or lines)[0].removeprefix('File ')}" if lines else ""

    def _last_line(self) -> str:
        return next((each for each in reversed(self._tail()) if each.strip()), "no output")

    def _tail(self) -> list[str]:
        with suppress(OSError), self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - _TAIL))
            return file.read().decode(errors="replace").splitlines()
        return []


class FreshProcesses:
    """Starts processes by fork where that is possible, else afresh."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder  # of the logs
        self.method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"

    def check_imports(self) -> None:
        """Stop forking if this process has opened the driver."""
        with suppress(OSError):
            for each in Path("/proc/self/fd").iterdir():
                with suppress(OSError):  # the descriptor of this very list
                    if str(each.readlink()) == _DRIVER:
                        self.method = "spawn"

    def start(self, name: str, function: Callable[..., None], *arguments: Any, seconds: float, **named: Any) -> Running:
        """Start a function in a process. It should write its results to a file."""
        log = self._folder / f"{name}.log"
        log.write_bytes(b"")
        context: Any = multiprocessing.get_context(self.method)
        process = context.Process(target=_run, args=(function, arguments, named, log, seconds, os.getpid()))
        sys.stdout.flush()
        sys.stderr.flush()
        process.start()
        return Running(process, log, seconds)


def _run(
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    log: Path,
    seconds: float,
    parent: int,
) -> None:
    """Run a function, and leave without the handlers of exit, which may hang in a library."""
    _die_with(parent)
    _redirect(log)
    with log.open("ab", buffering=0) as file:
        faulthandler.enable(file)
        faulthandler.dump_traceback_later(max(0.1, seconds - 0.5), file=file)
        code = 1
        try:
            function(*arguments, **named)
            code = 0
        except BaseException:  # noqa: BLE001 -- whatever it is, the log has it
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _redirect(log: Path) -> None:
    """Write the output of this process and of its libraries to a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    for name, number in (("stdout", 1), ("stderr", 2)):  # what the parent has put in their place would be its own
        setattr(sys, name, open(number, "w", buffering=1, errors="backslashreplace", closefd=False))  # noqa: SIM115


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
