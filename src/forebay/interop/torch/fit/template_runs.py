"""Runs that begin from the template of a program's process: Note [Templates of processes]."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import IO, Any

from forebay.interop.torch.processes.template import SOCKET
from forebay.rehearsal.files_report import FilesReport
from forebay.rehearsal.launch import inherited_descriptors

__all__ = ["CopiedProcess", "Dropped", "Template"]

_SECONDS = 10.0  # for an answer of the template, which forks


class Dropped(Exception):
    """The end of a run from a template whose result may differ from that of a process of its own."""


class CopiedProcess:
    """A process that the template has started, with the part of the interface of `subprocess.Popen` that waits."""

    def __init__(self, connection: socket.socket, output: IO[bytes]) -> None:
        self.stdout = output
        self.returncode: int | None = None
        self.is_alone = True  # no other run from the template at the same time
        self._connection, self._read = connection, b""
        self.pid = self._number()
        connection.setblocking(False)

    def _number(self) -> int:
        """Return the number in the next line from the template. Raises Dropped if it has ended."""
        while b"\n" not in self._read:
            piece = self._connection.recv(64)
            if not piece:
                raise Dropped
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        return int(line)

    def poll(self) -> int | None:
        """Return the status, None while the process runs. Raises Dropped if the template has ended."""
        if self.returncode is None:
            try:
                self.returncode = self._number()
            except BlockingIOError:
                return None
            except OSError:
                raise Dropped from None
        return self.returncode

    def close(self) -> None:
        """Close the connection and the output."""
        self._connection.close()
        self.stdout.close()


class Template:
    """The template of a program, from the end of its first run, if there is one, to `close`.

    `stack` closes what the template needs: the folder of the records, and that of the private files.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._folder = Path()
        self._has_changed: Callable[[], bool] = lambda: True
        self.report: Callable[[], FilesReport | None] = lambda: None  # on the private files
        self._first: socket.socket | None = None  # the template ends with it
        self._running: set[CopiedProcess] = set()
        self._count = 0
        self._lock = Lock()
        self._is_closed = False
        self.is_wanted = True  # by the next run that begins in a process of its own

    @property
    def is_ready(self) -> bool:
        """True if runs can begin from it."""
        return self._first is not None

    def options(self) -> Mapping[str, Any]:
        """Return what the program needs to know to offer the template."""
        self.is_wanted = False
        return {"launcher": os.getpid(), "inherited": inherited_descriptors()}

    def take(
        self, stack: ExitStack, folder: Path, report: Callable[[], FilesReport], has_changed: Callable[[], bool]
    ) -> None:
        """Use the template of a program that has ended, if there is one, and take over what it needs.

        `has_changed` returns True if a run has changed private files, on which there is a `report`.
        """
        if not (folder / SOCKET).exists():
            return
        try:
            first = stack.enter_context(_connected(folder))  # also ends a template that is not used
        except OSError:  # it was killed with the program
            return
        with self._lock:
            if not self._is_closed and not has_changed():
                self._stack.enter_context(stack.pop_all())
                self._folder, self.report, self._has_changed, self._first = folder, report, has_changed, first

    def close(self) -> None:
        """End the template."""
        with self._lock:
            self._first, self._is_closed = None, True
        self._stack.close()

    def new_folder(self) -> Path:
        """Return a new folder for the records of a run."""
        with self._lock:
            self._count += 1
            folder = self._folder / f"run-{self._count}"
        folder.mkdir()
        return folder

    @contextmanager
    def started(self, folder: Path, emulate: str) -> Iterator[CopiedProcess]:
        """Context manager: a run with the devices `emulate`. Raises Dropped where it would not be exact."""
        with self._lock:
            if self._has_changed():
                raise Dropped
            process = self._start({"folder": str(folder), "emulate": emulate})
            self._running.add(process)
            if len(self._running) > 1:
                for each in self._running:
                    each.is_alone = False
        try:
            yield process
            if not process.is_alone and self._has_changed():
                raise Dropped
        finally:
            with self._lock:
                self._running.discard(process)
            process.close()

    def _start(self, request: Mapping[str, Any]) -> CopiedProcess:
        with ExitStack() as undo:
            try:
                connection = undo.enter_context(_connected(self._folder))
                reader, writer = os.pipe()
                output = undo.enter_context(os.fdopen(reader, "rb"))
                with os.fdopen(writer, "wb"):
                    socket.send_fds(connection, [json.dumps(request).encode()], [writer])
                process = CopiedProcess(connection, output)
            except OSError:
                raise Dropped from None
            undo.pop_all()
        return process


def _connected(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_SECONDS)
    try:
        connection.connect(str(folder / SOCKET))
    except BaseException:
        connection.close()
        raise
    return connection
