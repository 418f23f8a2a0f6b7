"""File descriptors kept for the report, as the program may use up all others."""

from __future__ import annotations

import fcntl
import os
import stat

__all__ = ["ReservedDescriptors"]

_COUNT = 8  # files of the report, modules imported for it, and the directories that are searched for them
_MIN_FD = 210  # high, so that the program's own file descriptors still start at 3


class ReservedDescriptors:
    """Descriptors of the null device, from the creation of the object until `release`."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        try:
            null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            for _ in range(_COUNT):
                self._numbers.append(_duplicate(null))
        except OSError:  # the limit is low: those that could be had are kept
            pass
        finally:
            os.close(null)
        os.register_at_fork(after_in_child=self.release)

    def release(self) -> None:
        """Close the descriptors, except those that the program has closed and used for another file."""
        for number in self._numbers:
            try:
                found = os.fstat(number)
                if stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(os.devnull).st_rdev:  # noqa: PTH116 - no Path
                    os.close(number)
            except OSError:
                continue
        self._numbers = []


def _duplicate(number: int) -> int:
    try:
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _MIN_FD)
    except OSError:  # the limit is lower
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
