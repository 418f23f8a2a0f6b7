"""Output at the end of a program: to the original standard error, even if the program has closed or replaced it."""

from __future__ import annotations

import fcntl
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_MIN_FD = 200  # high, so that the program's own file descriptors still start at 3


class Terminal:
    """A duplicate of standard error that is independent of the program's."""

    def __init__(self) -> None:
        self._fd = self._file = None
        self._encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        for lowest in (_MIN_FD, 3):
            try:
                self._fd = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, lowest)
                break
            except OSError:  # standard error is closed, or the limit of descriptors is lower
                continue
        self._identity = self._file_identity()
        os.register_at_fork(after_in_child=self.close)  # a daemon must not keep the parent's pipe open

    def _file_identity(self) -> tuple[int, int] | None:
        """Return device and inode of the duplicate; None if it is closed."""
        try:
            found = os.fstat(self._fd) if self._fd is not None else None
        except OSError:
            return None
        return found and (found.st_dev, found.st_ino)

    def console(self) -> Console:
        """Return a console that never raises: output that cannot be written is discarded."""
        from rich.console import Console

        file = _LossyFile(self._fd if self._file_identity() == self._identity else None, self._encoding)
        width = None if file.isatty() or "COLUMNS" in os.environ else 120  # rich assumes 80 for files
        # Without emoji: ":x:" in a path is none, and rich would import its table of their names.
        return Console(file=file, width=width, highlight=False, emoji=False)  # type: ignore[arg-type]  # all that it needs

    def print_line(self, line: str) -> None:
        """Print a plain line."""
        self.print(f"{line}\n")

    def print(self, text: str) -> None:
        """Print a plain text."""
        _LossyFile(self._fd if self._file_identity() == self._identity else None, self._encoding).write(text)

    def close(self) -> None:
        """Close the duplicate, unless the program has closed it and reused the descriptor."""
        if self._fd is not None and self._file_identity() == self._identity:
            os.close(self._fd)
        self._fd = None


class _LossyFile:
    """The part of a text file that rich needs; write errors are ignored."""

    def __init__(self, fd: int | None, encoding: str) -> None:
        self._fd, self.encoding = fd, encoding

    def write(self, text: str) -> int:
        remaining = text.encode(self.encoding, "replace")
        try:
            while remaining and self._fd is not None:
                remaining = remaining[os.write(self._fd, remaining) :]
        except OSError:  # a closed pipe, a full disk
            self._fd = None
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return self._fd is not None and os.isatty(self._fd)

    def fileno(self) -> int:
        if self._fd is None:
            raise OSError("standard error is closed")
        return self._fd
