"""A folder for the changes of one run, which the next run removes if this one was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["PrivateFolder"]

_PREFIX = "forebay-rehearsal-"
_LOCK = "lock"


class PrivateFolder:
    """A folder that only this user can read, with a lock that the kernel releases when the process ends."""

    def __init__(self) -> None:
        base = Path(tempfile.gettempdir())
        _remove_stale(base)
        self.path: Path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.geteuid()}-", dir=base))
        self.lock: int = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in ("upper", "deleted"):
            (self.path / name).mkdir()

    def remove(self) -> None:
        """Remove the folder. Calling it again does nothing."""
        if self.lock >= 0:
            _remove_tree(self.path)
            os.close(self.lock)
            self.lock = -1


def _remove_stale(base: Path) -> None:
    """Remove the folders of this user whose process has ended. One without a lock is being made."""
    for folder in base.glob(f"{_PREFIX}{os.geteuid()}-*"):
        with suppress(OSError):
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            handle = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_tree(folder)
            finally:
                os.close(handle)


def _remove_tree(folder: Path) -> None:
    def make_writable(remove: Callable[..., Any], path: str, _error: Any) -> None:
        with suppress(OSError):  # a folder without permissions, such as one that overlayfs has made
            os.chmod(os.path.dirname(path), 0o700)  # noqa: PTH101, PTH120 -- a text
            if not os.path.islink(path):  # noqa: PTH114 -- as above
                os.chmod(path, 0o700)  # noqa: PTH101 -- as above
            remove(path)

    shutil.rmtree(folder, onerror=make_writable)
