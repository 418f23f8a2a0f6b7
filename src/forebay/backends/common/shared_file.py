"""Memory that other processes can map: a file without a name, which goes with the last process that has it.

A handle is 64 bytes: who has the file, under which number, how large it is, and a random word that is the file's name
for the system. So what is stale or made up opens nothing. Nothing is left on a disk, however a process ends.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import NamedTuple, Self

from forebay.backends.common.cuda_errors import INVALID_HANDLE
from forebay.backends.common.mmap import map_shared, unmap_memory
from forebay.errors import DeviceError, Unsupported

__all__ = ["HANDLE_BYTES", "Handle", "SharedFile", "invalid_handle"]

HANDLE_BYTES = 64

_FORM = struct.Struct("<4sIIQQQ16s12x")


class Handle(NamedTuple):
    """What the bytes say. `word` and `offset` are for who made it."""

    purpose: bytes  # 4 of them
    process: int
    number: int  # of the file, in that process
    nbytes: int
    offset: int
    word: int
    name: bytes

    def packed(self) -> bytes:
        return _FORM.pack(*self)

    @classmethod
    def read(cls, data: object, purpose: bytes, device: str) -> Self:
        """DeviceError for what is no such handle."""
        if not isinstance(data, bytes | bytearray | memoryview) or len(data) != HANDLE_BYTES:
            found = f"{len(data)} bytes" if hasattr(data, "__len__") else type(data).__name__
            raise invalid_handle(f"a handle is {HANDLE_BYTES} bytes, not {found}", device)
        handle = cls(*_FORM.unpack(data))
        if handle.purpose != purpose:
            raise invalid_handle("these bytes are no handle of that", device)
        return handle


def invalid_handle(why: str, device: str) -> DeviceError:
    return DeviceError(f"invalid resource handle: {why}", code=INVALID_HANDLE, call="open", device=device)


class SharedFile:
    """Zeroed memory of a new file (`made`), or another process's (`opened`), with a descriptor as long as it is ours.

    `address` is where it is mapped.
    """

    def __init__(self, number: int, nbytes: int, name: bytes) -> None:
        self.nbytes = nbytes
        self.name = name
        self.process = os.getpid()
        self._number = number  # -1: closed
        try:
            self.address = map_shared(number, nbytes)
        except BaseException:
            self.close()
            raise

    @classmethod
    def made(cls, nbytes: int) -> Self:
        """OSError where the system has none; Unsupported where it knows no such files."""
        if not hasattr(os, "memfd_create"):
            raise Unsupported("memory is shared through files without a name, which only Linux has", ability="Shares")
        import fcntl  # late: it is not everywhere

        name = os.urandom(16)
        number = os.memfd_create(_title(name), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(number, nbytes)
            # Whoever opens it could else make it shorter, and us crash.
            fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        except BaseException:
            os.close(number)
            raise
        return cls(number, nbytes, name)

    @classmethod
    def opened(cls, handle: Handle, device: str) -> Self:
        """The file of another process. DeviceError that says why it cannot be."""
        there = f"/proc/{handle.process}/fd/{handle.number}"
        try:
            _check_title(there, handle, device)  # before it is opened: it may be a terminal by now, or a pipe
            number = os.open(there, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise _refusal(error, handle, device) from None
        try:
            _check_title(f"/proc/self/fd/{number}", handle, device)
            if os.fstat(number).st_size != handle.nbytes:
                raise invalid_handle("the memory is not as large as it says", device)  # noqa: TRY301 -- below it is closed
        except BaseException:
            os.close(number)
            raise
        found = cls(number, handle.nbytes, handle.name)
        found.close()  # the mapping keeps it
        return found

    def handle(self, purpose: bytes, offset: int = 0, word: int = 0) -> bytes:
        return Handle(purpose, self.process, self._number, self.nbytes, offset, word, self.name).packed()

    @property
    def mine(self) -> bool:
        """Whether this process has it, and not the one it was forked from."""
        return self.process == os.getpid()

    def close(self) -> None:
        """Nobody opens it from now on; who has, keeps it. Twice is once."""
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)

    def unmap(self) -> None:
        unmap_memory(self.address, self.nbytes)


def _title(name: bytes) -> str:
    return f"forebay-{name.hex()}"


def _check_title(path: str, handle: Handle, device: str) -> None:
    if os.readlink(path) != f"/memfd:{_title(handle.name)} (deleted)":  # noqa: PTH115 -- as below
        raise invalid_handle(f"process {handle.process} shares this no longer, or never did", device)


def _refusal(error: OSError, handle: Handle, device: str) -> DeviceError:
    if error.errno in {errno.EACCES, errno.EPERM}:
        message = f"process {handle.process}, which shares it, is another user's: {error.strerror}"
        return DeviceError(message, code=error.errno, call="open", device=device)
    if error.errno == errno.ENOENT:
        if os.path.exists(f"/proc/{handle.process}"):  # noqa: PTH110 -- a Path takes as long as the call
            return invalid_handle(f"process {handle.process} shares this no longer, or never did", device)
        return invalid_handle(f"process {handle.process}, which shared it, is gone", device)
    message = f"what process {handle.process} shares cannot be opened: {error.strerror}"
    return DeviceError(message, code=error.errno or 0, call="open", device=device)
