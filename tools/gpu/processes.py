"""The process of a part: its limit, its output, the disk it may fill, and the end of all processes that it started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

__all__ = ["Ending", "kill_marked", "python", "run_process", "stop"]

MARK = "FOREBAY_GPU_PART"  # the variable that all processes of a part inherit
LOG_BYTES = 256 << 10  # kept of the beginning of the output, and as much of its end
RESERVE = 64 << 20  # free bytes of the disk below which a part is stopped
_POLL = 0.2  # seconds
_SCAN = 2.0  # seconds for all processes

stop = threading.Event()  # set to end all processes of the run
_KILLED = 10.0  # seconds for a killed process to end; one that is stuck in the driver does not


@dataclass(frozen=True)
class Ending:
    """The end of a process: its status, or why it was stopped, and the end of its output."""

    status: int | None
    stopped: str
    tail: list[str] = field(default_factory=list)


def run_process(
    command: list[str],
    log: Path,
    seconds: float,
    *,
    folder: Path,
    variables: Mapping[str, str],
    on_poll: Callable[[], None] = lambda: None,
) -> Ending:
    """Run a command until it ends, its time is over, or the disk is nearly full; then end what it has started.

    Parameters
    ----------
    command : list of str
        The command.
    log : Path
        File for its output, of which at most the first and last `LOG_BYTES` are kept.
    seconds : float
        Limit. At its end the process and its descendants are killed.
    folder : Path
        Working directory.
    variables : mapping of str to str
        Its environment.
    on_poll : callable, optional
        Function that is called several times a second while the process runs.
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**variables, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    output = _Output(cast("IO[bytes]", process.stdout))
    stopped = ""
    try:
        stopped = _wait(process, log.parent, seconds, on_poll)
    finally:
        kill_marked(mark, process)
        output.write(log)
    return Ending(process.returncode, stopped, output.tail())


def _wait(process: subprocess.Popen[bytes], place: Path, seconds: float, on_poll: Callable[[], None]) -> str:
    """Wait for a process. Return why it must be stopped, or an empty text if it has ended."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if stop.is_set():
            return "stopped by a signal"
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(_POLL, left))
            return ""
        on_poll()
        if (free := shutil.disk_usage(place).free) < RESERVE:
            return f"stopped when only {free >> 20} MiB of the disk were free"
    return f"stopped after {seconds:.0f} s"


def kill_marked(mark: str, process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants, also those that have a session or a parent of their own."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    end = time.monotonic() + _KILLED
    while (alive := _marked(mark)) and time.monotonic() < end:  # a process may start another one before it is killed
        for pid in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
        threading.Event().wait(0.02)
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(end - time.monotonic(), 0.1))


def _marked(mark: str) -> list[int]:
    """Return the processes that inherited a mark and have not ended. Elsewhere than on Linux none is found."""
    wanted, found = f"{MARK}={mark}".encode(), list[int]()

    def scan() -> None:
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if wanted in path.read_bytes().split(b"\0"):  # empty for a process that has ended
                    found.append(int(path.parent.name))

    # The file of a process that is stuck in the driver may block its reader, as it takes the lock of its memory.
    scanning = threading.Thread(target=scan, daemon=True)
    scanning.start()
    scanning.join(_SCAN)
    return [*found]


class _Output:
    """The output of a process: its beginning and its end. A thread reads it, so that the process is never blocked."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._first = bytearray()
        self._last: deque[bytes] = deque()
        self._total = self._kept = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            while chunk := os.read(self._pipe.fileno(), 1 << 16):
                self._total += len(chunk)
                if len(self._first) < LOG_BYTES:
                    self._first += chunk
                    continue
                self._last.append(chunk)
                self._kept += len(chunk)
                while self._kept - len(self._last[0]) > LOG_BYTES:
                    self._kept -= len(self._last.popleft())

    def text(self) -> str:
        """Return what is kept, once the process and its descendants have ended."""
        self._reader.join(1.0)  # a descendant that could not be killed keeps the pipe open
        first, last = bytes(self._first), b"".join(self._last)
        left_out = self._total - len(first) - len(last)
        middle = f"\n... {left_out:,} bytes are left out ...\n".encode() if left_out > 0 else b""
        return (first + middle + last).decode(errors="replace")

    def write(self, log: Path) -> None:
        """Write the log, if the disk permits it."""
        with suppress(OSError):
            log.write_text(self.text(), encoding="utf-8", errors="replace")
        if not self._reader.is_alive():
            self._pipe.close()

    def tail(self, lines: int = 40) -> list[str]:
        return [line[:500] for line in self.text().splitlines()[-lines:]]


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *arguments]
