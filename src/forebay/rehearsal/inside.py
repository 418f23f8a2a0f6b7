"""The program's side of a run without values: asks the process that started it for the report of its files."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from forebay.rehearsal.variables import CHANNEL, FOLDER, MECHANISM, RENAMES

if TYPE_CHECKING:
    from forebay.rehearsal.files_report import FilesReport

__all__ = ["Channel", "is_inside", "redirect_files"]

_LOWEST = 220
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_TIMEOUT = 60.0  # seconds: a list of the files is read from memory


def is_inside() -> bool:
    """Return True in a program whose changes are private, and in the processes that it starts."""
    return os.environ.get(MECHANISM) == "inside"


def _reserve(number: int) -> int:
    """Return a high descriptor in place of one, so that those of the program begin at 3."""
    for lowest in (_LOWEST, 3):
        with suppress(OSError):  # the limit is lower
            found = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, lowest)
            os.close(number)
            return found
    os.set_inheritable(number, False)
    return number


def redirect_files() -> None:
    """Redirect Python's functions for files, if this program has no namespace of mounts."""
    text = os.environ.get(FOLDER, "")
    if text:
        from forebay.rehearsal import file_functions, socket_addresses
        from forebay.rehearsal.merged_view import MergedView

        details = json.loads(text)
        file_functions.install(MergedView(details["folder"], details["real"]))
        socket_addresses.install(file_functions.place_of)
        _end_with(details["parent"])
    if os.environ.get(RENAMES):
        from forebay.rehearsal import folder_renames, foreign_files

        folder_renames.install()
        foreign_files.install()


def _end_with(parent: int) -> None:
    """End this process when the launcher ends, whose exit would otherwise be taken for that of the program."""
    if sys.platform == "linux" and os.getppid() == parent:  # otherwise a process of the program
        import ctypes

        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


class Channel:
    """A connection to the process that started the program. Create it before the program runs."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        number = os.environ.pop(CHANNEL, "")  # not inherited by the processes of the program
        if number.isdecimal():
            with suppress(OSError):
                self._socket = socket.socket(fileno=_reserve(int(number)))
                self._socket.settimeout(_TIMEOUT)

    def report(self) -> FilesReport | None:
        """Return the report of the files up to now; None if the program has closed the connection. Never raises."""
        if self._socket is None:
            return None
        from forebay.rehearsal.files_report import FilesReport
        from forebay.rehearsal.services import used

        try:
            self._socket.sendall(b"?")
            size = int.from_bytes(self._receive(8), "big")
            found = FilesReport.from_json(json.loads(self._receive(size)))
            return replace(found, services=used(sys.modules))
        except (OSError, ValueError, TypeError, KeyError, EOFError):
            return None

    def _receive(self, size: int) -> bytes:
        found = b""
        while self._socket is not None and len(found) < size:
            piece = self._socket.recv(size - len(found))
            if not piece:
                raise EOFError
            found += piece
        return found
