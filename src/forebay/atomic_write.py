"""Atomic file writes: a file is replaced completely or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["atomic_write", "check_writable"]


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` on success and is deleted on any exception.

    Symbolic links are followed, except those of other users in a directory that others can write, as in /tmp. A path
    that is not a regular file (a device, a pipe) is written directly.
    """
    path = _resolved(path)
    if _is_special(path):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "wb") as file:
            yield file
        return
    part = _temporary_path(path)
    try:
        # O_EXCL also refuses a link that another process created.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(part, flags, 0o666), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:  # KeyboardInterrupt included
        part.unlink(missing_ok=True)
        raise


def check_writable(path: Path, what: str) -> None:
    """Raise OSError if `atomic_write(path)` would fail. `what` names the content in the error text."""
    path = _resolved(path)
    if path.is_dir():
        raise IsADirectoryError(f"{what} cannot be written to {str(path)!r}: it is a directory")
    if _is_special(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{what} cannot be written to {str(path)!r}: permission denied")
        return
    probe = _temporary_path(path)
    try:
        probe.touch()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # the caller's path instead of the probe's
    probe.unlink()


def _resolved(path: Path) -> Path:
    """Return the path without symbolic links. Raises PermissionError for a link or a special file of another user.

    In a directory that others can write, only the user and the owner of the directory are trusted, as by Linux with
    fs.protected_symlinks.
    """
    path = path.absolute()
    for _ in range(40):  # as many links as Linux follows
        link = next((each for each in (*reversed(path.parents), path) if each.is_symlink()), None)
        if link is None:
            break
        _check_owner(link, "symbolic link")
        path = Path(os.path.normpath(link.parent / os.readlink(link))) / path.relative_to(link)  # noqa: PTH115 - str
    path = path.resolve()
    if _is_special(path):
        _check_owner(path, "special file")
    return path


def _check_owner(path: Path, what: str) -> None:
    folder = path.parent.stat()
    if folder.st_mode & 0o022 and path.lstat().st_uid not in (os.geteuid(), folder.st_uid):
        raise PermissionError(errno.EPERM, f"it is a {what} of another user in a shared directory", str(path))


def _is_special(path: Path) -> bool:
    return path.exists() and not (path.is_file() or path.is_dir())


def _temporary_path(path: Path) -> Path:
    """Return a unique path in the same directory."""
    return path.with_name(f".{path.name[:100]}.{os.getpid()}-{os.urandom(4).hex()}.part")
