"""The mapped file of one process: its peaks, refused requests and end, up to date at any instruction.

It has the time of each change of the reserved bytes, for Note [Memory of several processes].
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import time
from pathlib import Path

__all__ = ["CHANGES", "DEVICES", "DEVICE_WORDS", "HEADER", "NO_STATUS", "SUFFIX", "LiveRecord", "Word", "WordOfDevice"]

SUFFIX = ".use"
NO_STATUS = 1 << 40  # the exit status is not known
HEADER, DEVICES, DEVICE_WORDS, CHANGES = 16, 128, 8, 1 << 14  # words of 64 bits; devices; words of each; changes
_WORDS = HEADER + DEVICES * DEVICE_WORDS + CHANGES * 3
_FAILED = ctypes.c_void_p(-1).value


class Word:
    """Positions in the header."""

    VERSION, PID, PARENT, STARTED, ENDED, STATUS, CHANGES, REPLACED = range(8)


class WordOfDevice:
    """Positions in the words of a device. Sizes are in bytes."""

    IS_KNOWN, CAPACITY, ALLOCATED, RESERVED, OOMS, FAILED, IDLE, NOW = range(8)


class LiveRecord:
    """The file of this process, in a folder that exists.

    The mapping has no file descriptor, as programs close those that they do not know, and it stays until the process
    ends. `mmap.mmap` would keep a descriptor, the lowest free one, which programs may expect to be theirs. OSError is
    raised if the file cannot be created or mapped.
    """

    def __init__(self, folder: str) -> None:
        started = time.monotonic_ns()  # a clock that all processes share
        self.path = Path(folder) / f"{started:020}-{os.getpid()}{SUFFIX}"
        self.address = _mapped(self.path, _WORDS * 8)
        self._words = (ctypes.c_int64 * _WORDS).from_address(self.address)
        self._changes = itertools.count()
        words = self._words
        words[Word.PID], words[Word.PARENT], words[Word.STARTED] = os.getpid(), os.getppid(), started
        words[Word.STATUS] = NO_STATUS
        words[Word.VERSION] = 1  # last: the record is complete

    @property
    def end_address(self) -> int:
        """The address of the time of the end, which the exit status follows."""
        return self.address + Word.ENDED * 8

    def used(self, index: int, capacity: int, allocated: int, reserved: int) -> None:
        """Note what a device has in blocks and in segments now, after an allocation."""
        words, at = self._words, HEADER + index * DEVICE_WORDS
        if not words[at + WordOfDevice.IS_KNOWN]:
            words[at + WordOfDevice.CAPACITY] = capacity
            words[at + WordOfDevice.IS_KNOWN] = 1
        words[at + WordOfDevice.ALLOCATED] = max(words[at + WordOfDevice.ALLOCATED], allocated)
        if reserved != words[at + WordOfDevice.NOW]:
            self._change(index, reserved)
            words[at + WordOfDevice.NOW] = reserved
            words[at + WordOfDevice.RESERVED] = max(words[at + WordOfDevice.RESERVED], reserved)
        if words[at + WordOfDevice.IDLE]:
            words[at + WordOfDevice.IDLE] = 0

    def refused(self, index: int, capacity: int, nbytes: int) -> None:
        """Note a request that ran out of memory."""
        words, at = self._words, HEADER + index * DEVICE_WORDS
        words[at + WordOfDevice.CAPACITY] = capacity
        words[at + WordOfDevice.IS_KNOWN] = 1
        words[at + WordOfDevice.FAILED] = nbytes
        words[at + WordOfDevice.IDLE] = 1
        words[at + WordOfDevice.OOMS] += 1

    def end(self, status: int | None = None) -> None:
        """Note the time of the end, and the status if it is known already."""
        self._words[Word.ENDED] = time.monotonic_ns()
        if status is not None:
            self._words[Word.STATUS] = status & 0xFF

    def replace(self, replaced: bool) -> None:
        """Note that another program replaces this one, or that it could not."""
        self._words[Word.REPLACED] = replaced
        self._words[Word.ENDED] = time.monotonic_ns() if replaced else 0

    def _change(self, index: int, reserved: int) -> None:
        number = next(self._changes)  # one step, as threads may come between others
        if number < CHANGES:
            at = HEADER + DEVICES * DEVICE_WORDS + number * 3
            self._words[at : at + 3] = [time.monotonic_ns(), index, reserved]
        self._words[Word.CHANGES] = number + 1  # beyond CHANGES: the reader takes the peak from then on


def _mapped(path: Path, nbytes: int) -> int:
    """Create a file and return the address of its content, which is shared with the file."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.write(number, bytes(nbytes)) < nbytes:  # a sparse file would end the program once the disk is full
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        address: int | None = libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, number, 0)
        if address is None or address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), str(path))
    finally:
        os.close(number)
    return address
