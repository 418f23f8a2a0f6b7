"""Template of a program's process: a copy that waits, and from which runs on other cards begin.

# Note [Templates of processes]
A program starts in the same way on each card: Python, PyTorch's import and the patch take most of the time of a short
run. So the first process of the program forks when the import of PyTorch ends, before anything has asked about the
card. The copy, the template, waits for requests of the launcher, and forks for each: that copy is another run of the
program, with the card of the request. It must be what a process of its own would be:

* It is made by the C library, so that no handler of Python runs, such as that which seeds `random` anew.
* There is no template if a copy would lack or share something: another thread (those of OpenBLAS and OpenMP end
  themselves before a fork, so threads are counted after it), a child process, a timer, shared memory, a descriptor
  that is no file for reading. The positions of such files are restored, as another run may have moved them.
* All runs see the same private files. A run whose files another one may have changed is dropped, and takes place in a
  process of its own: see `fit/template_runs.py`.

Rejected: a server that has imported PyTorch before the program begins, as programs set variables of the environment
and warning filters before they import it; a copy at the first question about the card, which would save more: the
modules that a program imports after PyTorch start threads.
Test: tests/interop/torch/fit/test_template_runs.py::test_runs_from_a_template_are_those_of_own_processes
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import socket
import stat
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

__all__ = ["SOCKET", "offer"]

SOCKET = "template"  # the file in the folder of the records
_CHANNEL = "FOREBAY_REHEARSAL_CHANNEL"  # a descriptor without a position, which only reports use
_SECONDS = 5.0  # between two looks at whether the launcher is alive
_REQUEST = 1 << 16  # bytes

_Positions = Mapping[int, int]  # of files, by descriptor


def offer(folder: str, launcher: int, inherited: Iterable[int]) -> dict[str, Any] | None:
    """Let the launcher start copies of this process, if it started it and they can be exact.

    `inherited` are the descriptors that all runs share anyway. Returns None in this process, and the request of the
    launcher in each copy.
    """
    if sys.platform != "linux" or os.getppid() != launcher or not hasattr(os, "pidfd_open"):
        return None
    if len(sys._current_frames()) > 1 or _has_children() or _has_timer() or _shares_memory(folder):
        return None
    positions = _open_files({0, 1, 2, *inherited})
    if positions is None:
        return None
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.join(folder, SOCKET))  # noqa: PTH118 -- a text, as the caller has it
            listener.listen()
            return _split(listener, launcher, positions)
    except OSError:  # no process can be forked, or the path is too long for a socket
        return None


def _split(listener: socket.socket, launcher: int, positions: _Positions) -> dict[str, Any] | None:
    """Make the template, which is no child of this process: the program may wait for any child."""
    reader, writer = os.pipe()
    pid = _fork()
    if pid == 0:
        os.close(writer)
        if not os.read(reader, 1) or _fork():
            _exit()
        os.close(reader)
        return _serve(listener, launcher, positions)
    os.close(reader)
    if len(os.listdir("/proc/self/task")) == 1:  # noqa: PTH208 -- names
        os.write(writer, b"+")
    else:
        os.unlink(listener.getsockname())  # noqa: PTH108 -- a text
    os.close(writer)
    os.waitpid(pid, 0)
    return None


def _serve(listener: socket.socket, launcher: int, positions: _Positions) -> dict[str, Any]:
    """Fork at each request of the launcher. Returns in the copies only."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (1, 2):  # else the launcher would wait for more output
            os.dup2(null, number)
        os.close(null)
        return _Server(listener, positions).serve(launcher)
    except BaseException:  # the program must not go on in the template
        _exit(1)
        raise


class _Server:
    """The requests of the launcher, each with a connection of its own; the first one ends the template with its end."""

    def __init__(self, listener: socket.socket, positions: _Positions) -> None:
        self._listener, self._positions = listener, positions
        self._watched = selectors.DefaultSelector()
        self._watched.register(listener, selectors.EVENT_READ)
        self._first: socket.socket | None = None
        self._runs: dict[int, tuple[int, socket.socket]] = {}  # by descriptor of the process

    def serve(self, launcher: int) -> dict[str, Any]:
        while True:
            ready = self._watched.select(_SECONDS)
            if not os.path.exists(f"/proc/{launcher}"):  # noqa: PTH110 -- a text
                _exit()
            for key, _ in ready:
                if key.fileobj is self._listener:
                    request = self._answer(self._listener.accept()[0])
                    if request is not None:
                        return request
                elif key.fileobj is self._first:
                    _exit()
                else:
                    self._end(key.fd)

    def _answer(self, connection: socket.socket) -> dict[str, Any] | None:
        """Fork. Returns the request in the copy."""
        if self._first is None:
            self._first = connection
            self._watched.register(connection, selectors.EVENT_READ)
            return None
        text, descriptors, _, _ = socket.recv_fds(connection, _REQUEST, 1)
        if not descriptors:  # the launcher has given up
            connection.close()
            return None
        pid = _fork()
        if pid == 0:
            connection.close()
            self._become_run(descriptors[0])
            found: dict[str, Any] = json.loads(text)
            return found
        os.close(descriptors[0])
        process = os.pidfd_open(pid)
        self._watched.register(process, selectors.EVENT_READ)
        self._runs[process] = pid, connection
        with suppress(OSError):  # the launcher has given up, and kills the process
            connection.sendall(f"{pid}\n".encode())
        return None

    def _become_run(self, output: int) -> None:
        """Give this copy descriptors and a session of its own, as a process has that the launcher starts."""
        os.setsid()
        for number in (1, 2):
            os.dup2(output, number)
        os.close(output)
        self._watched.close()
        self._listener.close()
        if self._first is not None:
            self._first.close()
        for process, (_, connection) in self._runs.items():
            os.close(process)
            connection.close()
        for number, position in self._positions.items():
            _reopen(number, position)

    def _end(self, process: int) -> None:
        """Tell the launcher the status of a run."""
        pid, connection = self._runs.pop(process)
        self._watched.unregister(process)
        os.close(process)
        _, status = os.waitpid(pid, 0)
        with suppress(OSError):
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        connection.close()


def _reopen(number: int, position: int) -> None:
    """Give a descriptor a position of its own."""
    inheritable = os.get_inheritable(number)
    own = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
    os.lseek(own, position, os.SEEK_SET)
    os.dup2(own, number, inheritable)
    os.close(own)


def _open_files(known: set[int]) -> _Positions | None:
    """Return the positions of the files that are open for reading; None if anything else is open."""
    import fcntl

    if (channel := os.environ.get(_CHANNEL, "")).isdecimal():
        known.add(int(channel))
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 -- names
        number = int(name)
        if number in known:
            continue
        try:
            mode = os.fstat(number).st_mode
        except OSError:  # the list itself
            continue
        if stat.S_ISCHR(mode):  # such as /dev/null and /dev/urandom
            continue
        if not stat.S_ISREG(mode) or fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
            return None
        found[number] = os.lseek(number, 0, os.SEEK_CUR)
    return found


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _has_timer() -> bool:
    return any(signal.getitimer(each)[0] for each in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF))


def _shares_memory(folder: str) -> bool:
    """Return True if this process can write memory that it shares with others, except its record."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 -- a text
        return any(_is_shared(line.split(None, 2)[1]) and folder not in line for line in file)


def _is_shared(access: str) -> bool:
    return access[1] == "w" and access[3] == "s"


def _fork() -> int:
    """Fork by the C library, which keeps the lock of the interpreter. Raises OSError."""
    pid: int = ctypes.PyDLL(None).fork()
    if pid < 0:
        raise OSError("fork failed")
    return pid


def _exit(status: int = 0) -> None:
    """End this process at once: os._exit may write a record."""
    ctypes.CDLL(None)._exit(status)
