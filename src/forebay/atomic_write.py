"""Files that are there whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["check_writable", "in_place_of"]


@contextmanager
def in_place_of(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `path` when that went well, and goes when it did not.

    Where `path` is a link, what it leads to is meant. What is no regular file, as a device or a pipe, is written to.
    """
    path = path.resolve()
    if _is_special(path):
        with path.open("wb") as file:
            yield file
        return
    part = _beside(path)
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:  # Ctrl-C, too
        part.unlink(missing_ok=True)
        raise


def check_writable(path: Path, what: str) -> None:
    """OSError where `in_place_of` could not write to it; `what` it would be."""
    path = path.resolve()
    if path.is_dir():
        raise IsADirectoryError(f"{what} is written to a file, and {str(path)!r} is a directory")
    if _is_special(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{what} cannot be written to {str(path)!r}: it takes nothing of this user")
        return
    probe = _beside(path)
    try:
        probe.touch()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # the name that the caller knows
    probe.unlink()


def _is_special(path: Path) -> bool:
    return path.exists() and not (path.is_file() or path.is_dir())


def _beside(path: Path) -> Path:
    """A name in the same directory for what will be `path`: another one each time."""
    return path.with_name(f".{path.name[:100]}.{os.getpid()}-{os.urandom(4).hex()}.part")
