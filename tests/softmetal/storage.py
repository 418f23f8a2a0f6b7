"""Memory of buffers and heaps, and the pieces of it that buffers have."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
from typing import Any

from .control import control

_GPU_BASE = 0x1_0000_0000_0000  # GPU addresses are none of the host, so that using one there fails
_POISON_BYTES = 1 << 16  # at the beginning and the end of a region: writing more would take memory from the machine
_PAGE = 16384  # of macOS
_BEHIND = bytes(256)  # a kernel that writes behind a buffer finds place here, so that it is noticed
# Linux counts memory that is not used yet, unless it is told otherwise; Python 3.11 has no name for that.
_NORESERVE = 0x4000 if sys.platform == "linux" else 0

_zombies: list[Storage] = []


class Storage:
    """A range of the host's memory that a device has allocated, from a page of macOS, and zeros behind it."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        self.map: mmap.mmap | None = mmap.mmap(-1, nbytes + _PAGE + len(_BEHIND), flags=flags)
        anchor = ctypes.c_char.from_buffer(self.map)
        self.begin = -ctypes.addressof(anchor) % _PAGE  # in the map
        self.address = ctypes.addressof(anchor) + self.begin
        del anchor
        self.uses: list[Any] = []  # by passes, see hazards.py

    def is_intact(self) -> bool:
        """Say whether nothing has been written behind the memory."""
        return ctypes.string_at(self.address + self.nbytes, len(_BEHIND)) == _BEHIND

    def __del__(self) -> None:
        if self.map is not None:
            try:
                self.map.close()
            except BufferError:  # views of contents() exist still; that they are used is an error, see check_zombies
                _zombies.append(self)


class BorrowedStorage:
    """Memory of the program that a buffer uses without a copy, and without keeping it alive."""

    begin = 0

    def __init__(self, view: memoryview) -> None:
        self.nbytes = view.nbytes
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        self.map: Any = memoryview((ctypes.c_char * self.nbytes).from_address(self.address)).cast("B")
        self.uses: list[Any] = []

    def is_intact(self) -> bool:
        """The program has what is behind its memory."""
        return True


def check_zombies() -> None:
    """Complain about memory that has views, although its buffer was released."""
    while _zombies:
        storage = _zombies.pop()
        assert storage.map is not None
        try:
            storage.map.close()
        except BufferError:
            storage.map = None  # complain once
            control.note_violation("dead-memory", f"{storage.nbytes} bytes of a released buffer have views still")


class Region:
    """A part of a storage that one buffer has, as commands refer to it."""

    _numbers = itertools.count(1)

    def __init__(self, storage: Storage | BorrowedStorage, offset: int, nbytes: int, *, tracked: bool) -> None:
        self.storage = storage
        self.offset = offset
        self.nbytes = nbytes
        self.tracked = tracked
        self.dead = False
        self.aliasable = False
        self.number = next(self._numbers)

    @property
    def address(self) -> int:
        return self.storage.address + self.offset

    @property
    def gpu_address(self) -> int:
        return _GPU_BASE + self.address

    def view(self, offset: int, nbytes: int) -> memoryview:
        assert self.storage.map is not None
        start = self.storage.begin + self.offset + offset
        return memoryview(self.storage.map)[start : start + nbytes]

    def poison(self, value: int) -> None:
        """Overwrite a part, so that nothing can rely on what memory of a heap contains."""
        head = min(self.nbytes, _POISON_BYTES)
        ctypes.memset(self.address, value, head)
        tail = min(self.nbytes - head, _POISON_BYTES)
        ctypes.memset(self.address + self.nbytes - tail, value, tail)
