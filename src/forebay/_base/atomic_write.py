"""Atomic file writes: a file is replaced completely or not at all.

# Note [Files are replaced as a whole]
A report, snapshot or cache may be written while the process is killed, the disk is full, or another process writes the
same file; a reader must find the old content or the new one. So a file gets a temporary name beside it, made with
O_EXCL, is synchronised, and is then renamed, all by descriptors of the folder, which other users cannot exchange. Any
exception, KeyboardInterrupt included, removes it. A device or a pipe is written directly, as renaming would replace it
by a file. Rejected: writing in place, and a temporary file in another folder, from which a rename is a copy.
Test: tests/_base/test_atomic_write.py::test_file_is_replaced_completely_or_not_at_all
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from forebay._base.trusted_folders import check_target, named_errors, open_place

__all__ = ["atomic_write", "check_writable"]

# O_EXCL also refuses a link that another process created.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` on success and is deleted on any exception.

    The folder, links and a file that is replaced must be trusted: see Note [Trusted folders]. A path that is not a
    regular file is written directly: Note [Files are replaced as a whole].
    """
    folder, name = open_place(path)
    try:
        if _is_special(check_target(folder, name, path)):
            with named_errors(path):
                number = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            with os.fdopen(number, "wb") as file:
                yield file
            return
        part = _temporary_name(name)
        try:
            with os.fdopen(_made(folder, part, path), "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            with named_errors(path):
                os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:  # KeyboardInterrupt included
            with suppress(FileNotFoundError):
                os.unlink(part, dir_fd=folder)
            raise
    finally:
        os.close(folder)


def check_writable(path: Path, what: str) -> None:
    """Raise OSError if `atomic_write(path)` would fail. `what` names the content in the error text."""
    folder, name = open_place(path)
    try:
        found = check_target(folder, name, path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(f"{what} cannot be written to {str(path)!r}: it is a directory")
        if _is_special(found):
            if not os.access(name, os.W_OK, dir_fd=folder):
                raise PermissionError(f"{what} cannot be written to {str(path)!r}: permission denied")
            return
        probe = _temporary_name(name)
        os.close(_made(folder, probe, path))
        os.unlink(probe, dir_fd=folder)
    finally:
        os.close(folder)


def _made(folder: int, name: str, path: Path) -> int:
    """Make a file and return its descriptor."""
    with named_errors(path):
        return os.open(name, _NEW, 0o666, dir_fd=folder)


def _is_special(found: os.stat_result | None) -> bool:
    return found is not None and not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode))


def _temporary_name(name: str) -> str:
    """Return a unique name in the same directory."""
    return f".{name[:100]}.{os.getpid()}-{os.urandom(4).hex()}.part"
