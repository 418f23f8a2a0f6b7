"""End of all processes of a program, also if the process that started it is killed.

`python -I -S guard.py GROUP MARKER FOLDER` waits until its standard input ends. If the line "done" has not come before,
its parent was killed: it kills the processes of the program, and removes the folder. It imports the standard library
only.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["guarded", "kill_others", "kill_program", "main"]

_DONE = b"done\n"
_MOST = 100  # rounds, as a process may start others while it is looked for
_SELF = os.path.abspath(__file__)  # noqa: PTH100 -- pathlib is slow to import


@contextmanager
def guarded(group: int, marker: str, folder: str) -> Iterator[None]:
    """Context manager: if this process is killed, so are those of a program, and `folder` is removed.

    `group` is the process group of the program; `marker` a variable and its value, which the processes of this program
    have in their environment and no others.
    """
    command = [sys.executable, "-I", "-S", _SELF, str(group), marker, folder]
    null = subprocess.DEVNULL
    # A session of its own, so that what the terminal or a shell kills does not include it.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True) as process:
        try:
            yield
        finally:
            with suppress(OSError):  # it was killed
                process.communicate(_DONE)


def kill_program(group: int, marker: str) -> None:
    """Kill the processes of a program, also those that left its process group, as the workers of torchrun do.

    These are found by the marker, on Linux only: see `guarded`.
    """
    for _ in range(_MOST):
        with suppress(ProcessLookupError, PermissionError):  # PermissionError: macOS, of a group of zombies
            os.killpg(group, signal.SIGKILL)
        if not _kill_marked(marker):
            return


def kill_others(marker: str) -> None:
    """Kill the processes of a program, which has a marker, except this one, on Linux."""
    for _ in range(_MOST):
        if not _kill_marked(marker):
            return


def _kill_marked(marker: str) -> bool:
    """Kill the other processes that have a marker. Returns True if there were any."""
    found = [pid for pid in _with_marker(os.fsencode(marker)) if pid != os.getpid()]
    for pid in found:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def _with_marker(marker: bytes) -> Iterator[int]:
    if sys.platform != "linux":
        return
    for name in os.listdir("/proc"):  # noqa: PTH208 -- names
        if name.isdecimal():
            with suppress(OSError):  # it has ended, or belongs to another user
                with open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123 -- as above
                    variables = file.read().split(b"\0")
                if marker in variables:
                    yield int(name)


def main() -> None:
    """Wait for the end of the parent or of the program."""
    group, marker, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    if sys.stdin.buffer.readline() != _DONE:
        kill_program(group, marker)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
