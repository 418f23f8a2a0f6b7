"""Temporary folders of forebay, which a later process removes if the one that made them was killed.

# Note [Locks of temporary folders]
Each folder has a lock file that its process keeps locked, which the kernel unlocks
however the process ends. A program under `forebay run` may close all descriptors, so that the file also tells the
process: a folder is removed if it is not locked, and this process has ended. The lock file gets its name when it is
locked; a folder without one is being made.
Test: tests/_base/test_temporary_folders.py::test_folder_of_a_running_process_is_kept_also_if_it_closes_all_descriptors
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forebay._base.trusted_folders import open_folder

__all__ = ["LockedFolder", "temporary_folder"]

_LOCK = ".lock"
_LOWEST = 210  # high, so that the descriptors of a program under `forebay run` begin at 3


class LockedFolder:
    """A private folder in TMPDIR or /tmp. Those of processes that were killed are removed before.

    OSError is raised if TMPDIR is not trusted, as its owner could replace the folder, or the folder cannot be made.
    """

    def __init__(self, prefix: str) -> None:
        base = Path(tempfile.gettempdir())
        os.close(open_folder(base))
        pattern = f"{prefix}{os.geteuid()}-"
        _remove_stale(base, pattern)
        self.path: Path = Path(tempfile.mkdtemp(prefix=pattern, dir=base))
        self.lock: int = -1
        try:
            self.lock = _lock(self.path)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the folder. Calling it again does nothing."""
        _remove_tree(self.path)
        if self.lock >= 0:
            with suppress(OSError):  # the program has closed it
                os.close(self.lock)
            self.lock = -1


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Context manager for a private folder in TMPDIR or /tmp, which is deleted at the end. Raises as `LockedFolder`."""
    folder = LockedFolder(prefix)
    try:
        yield folder.path
    finally:
        folder.remove()


def _lock(folder: Path) -> int:
    """Return the descriptor of a new lock file, locked."""
    new = folder / f"{_LOCK}.new"
    made = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(made, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(made, f"{os.getpid()} {_started(os.getpid())}".encode())
        try:
            lock = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, _LOWEST)
        except OSError:  # the limit is lower
            lock = os.dup(made)
        new.rename(folder / _LOCK)
    finally:
        os.close(made)  # the lock is that of both
    return lock


def _started(pid: int) -> str:
    """Return when a process began, in the units of the system; "" where it does not tell."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    return ""


def _is_running(owner: str) -> bool:
    """Return True for the process in a lock file."""
    pid, _, started = owner.partition(" ")
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        pass
    return _started(int(pid)) == started


def _remove_stale(base: Path, prefix: str) -> None:
    for folder in base.glob(f"{prefix}*"):
        with suppress(OSError):  # another user's, being made, locked, or removed by another process
            os.close(open_folder(folder, private=True))
            if folder.is_symlink():
                continue
            handle = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_running(os.read(handle, 100).decode(errors="replace")):
                    _remove_tree(folder)
            finally:
                os.close(handle)


def _remove_tree(folder: Path) -> None:
    """Remove a folder and all below it, and change nothing beside it."""
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(parent, name)  # noqa: PTH118 -- a text
            if not os.path.islink(path):  # noqa: PTH114 -- as above
                with suppress(OSError):
                    os.chmod(path, 0o700)  # noqa: PTH101 -- as above. Overlayfs makes folders without permissions
    shutil.rmtree(folder, ignore_errors=True)
