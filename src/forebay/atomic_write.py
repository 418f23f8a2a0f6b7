"""Atomic file writes: a file is replaced completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["atomic_write", "check_writable"]


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` on success and is deleted on any exception.

    Symbolic links are followed. A path that is not a regular file (a device, a pipe) is written directly.
    """
    path = path.resolve()
    if _is_special(path):
        with path.open("wb") as file:
            yield file
        return
    part = _temporary_path(path)
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:  # KeyboardInterrupt included
        part.unlink(missing_ok=True)
        raise


def check_writable(path: Path, what: str) -> None:
    """Raise OSError if `atomic_write(path)` would fail. `what` names the content in the error text."""
    path = path.resolve()
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


def _is_special(path: Path) -> bool:
    return path.exists() and not (path.is_file() or path.is_dir())


def _temporary_path(path: Path) -> Path:
    """Return a unique path in the same directory."""
    return path.with_name(f".{path.name[:100]}.{os.getpid()}-{os.urandom(4).hex()}.part")
