"""Where forebay speaks when a program ends: the standard error it was started with, whatever became of it."""

from __future__ import annotations

import fcntl
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_OUT_OF_THE_WAY = 200  # a program that counts its file descriptors from 3 finds them there


class Terminal:
    """A second handle on standard error. The program may close, replace or redirect its own."""

    def __init__(self) -> None:
        self._fd = self._file = None
        self._encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        for lowest in (_OUT_OF_THE_WAY, 3):
            try:
                self._fd = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, lowest)
                break
            except OSError:  # standard error is closed, or so many descriptors are not allowed
                continue
        self._identity = self._what_is_there()
        os.register_at_fork(after_in_child=self.close)  # a daemon that lives on must not hold the parent's pipe

    def _what_is_there(self) -> tuple[int, int] | None:
        try:
            found = os.fstat(self._fd) if self._fd is not None else None
        except OSError:
            return None
        return found and (found.st_dev, found.st_ino)

    def console(self) -> Console:
        """A console that never fails: what cannot be shown is lost."""
        from rich.console import Console

        file = _Lossy(self._fd if self._what_is_there() == self._identity else None, self._encoding)
        wide = None if file.isatty() or "COLUMNS" in os.environ else 120  # a log file is wider than 80
        return Console(file=file, width=wide, highlight=False)  # type: ignore[arg-type]  # all that rich asks of a file

    def say(self, line: str) -> None:
        """One plain line, at any moment."""
        _Lossy(self._fd if self._what_is_there() == self._identity else None, self._encoding).write(f"{line}\n")

    def close(self) -> None:
        """Let go of it, unless the program has closed it and opened something else there."""
        if self._fd is not None and self._what_is_there() == self._identity:
            os.close(self._fd)
        self._fd = None


class _Lossy:
    """As much of a text file as rich needs; errors are nobody's business by then."""

    def __init__(self, fd: int | None, encoding: str) -> None:
        self._fd, self.encoding = fd, encoding

    def write(self, text: str) -> int:
        rest = text.encode(self.encoding, "replace")
        try:
            while rest and self._fd is not None:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:  # a closed pipe, a full disk
            self._fd = None
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return self._fd is not None and os.isatty(self._fd)

    def fileno(self) -> int:
        if self._fd is None:
            raise OSError("standard error is gone")
        return self._fd
