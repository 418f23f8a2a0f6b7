"""Memory files (memfd) that other processes can map; the system deletes a file with its last mapping.

A handle has 64 bytes: process id, file descriptor, size, and the file's random name, which is checked when the file is
opened, so that stale and forged handles are rejected. No file remains on disk, however a process ends.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import NamedTuple, Self

from forebay.backends.common._disposal import call_with_all
from forebay.backends.common._segments import unmap_all
from forebay.backends.common.cuda_errors import INVALID_HANDLE
from forebay.backends.common.mmap import map_shared
from forebay.errors import DeviceError, Unsupported

__all__ = ["HANDLE_BYTES", "Handle", "SharedFile", "invalid_handle"]

HANDLE_BYTES = 64

_FORMAT = struct.Struct("<4sIIQQQ16s12x")


class Handle(NamedTuple):
    """Content of a handle. The process that creates the handle defines `offset` and `word`."""

    purpose: bytes  # 4 bytes
    process: int
    number: int  # file descriptor in that process
    nbytes: int
    offset: int
    word: int
    name: bytes

    def pack(self) -> bytes:
        return _FORMAT.pack(*self)

    @classmethod
    def parse(cls, data: object, purpose: bytes, device: str) -> Self:
        """Return the content of a handle. Raises DeviceError if the bytes are not a handle for this purpose."""
        if not isinstance(data, bytes | bytearray | memoryview) or len(data) != HANDLE_BYTES:
            found = f"{len(data)} bytes" if hasattr(data, "__len__") else type(data).__name__
            raise invalid_handle(f"a handle has {HANDLE_BYTES} bytes, not {found}", device)
        handle = cls(*_FORMAT.unpack(data))
        if handle.purpose != purpose:
            raise invalid_handle("the handle is not valid for this call", device)
        return handle


def invalid_handle(why: str, device: str) -> DeviceError:
    return DeviceError(f"invalid resource handle: {why}", code=INVALID_HANDLE, call="open", device=device)


class SharedFile:
    """A mapped memory file: a new one (`create`), which keeps its descriptor open, or another process's (`open`)."""

    address: int

    def __init__(self, number: int, nbytes: int, name: bytes) -> None:
        self.nbytes = nbytes
        self.name = name
        self.process: int = os.getpid()
        self._number = number  # file descriptor; -1 when closed
        self._to_close = [number]
        try:
            self.address = map_shared(number, nbytes)
            self._mapped = [(self.address, nbytes)]
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, nbytes: int) -> Self:
        """Create a zeroed file. Raises OSError if there is no memory, Unsupported if the system has no memfd."""
        if not hasattr(os, "memfd_create"):
            raise Unsupported("sharing memory requires memfd_create, which only Linux has", ability="Shares")
        import fcntl  # late: some systems lack it

        name = os.urandom(16)
        number = os.memfd_create(_title(name), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(number, nbytes)
            # Otherwise another process could shrink the file and crash this one.
            fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        except BaseException:
            os.close(number)
            raise
        return cls(number, nbytes, name)

    @classmethod
    def open(cls, handle: Handle, device: str) -> Self:
        """Open the file of another process. Raises DeviceError with the reason."""
        path = f"/proc/{handle.process}/fd/{handle.number}"
        try:
            _check_title(path, handle, device)  # before opening: the descriptor may be a terminal or a pipe by now
            number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise _open_error(error, handle, device) from None
        try:
            _check_title(f"/proc/self/fd/{number}", handle, device)
            if os.fstat(number).st_size != handle.nbytes:
                raise invalid_handle("the size of the memory differs from the handle", device)  # noqa: TRY301 -- closed below
        except BaseException:
            os.close(number)
            raise
        found = cls(number, handle.nbytes, handle.name)
        found.close()  # the mapping keeps the file alive
        return found

    def handle(self, purpose: bytes, offset: int = 0, word: int = 0) -> bytes:
        return Handle(purpose, self.process, self._number, self.nbytes, offset, word, self.name).pack()

    @property
    def is_own(self) -> bool:
        """True in the process that mapped the file, False in its forked children."""
        return self.process == os.getpid()

    def close(self) -> None:
        """Close the descriptor, so that no process can open the file; existing mappings stay. Idempotent."""
        self._number = -1
        call_with_all(os.close, self._to_close)

    def unmap(self) -> None:
        """Unmap the memory. Idempotent, as other memory may have the address next."""
        unmap_all(self._mapped)


def _title(name: bytes) -> str:
    return f"forebay-{name.hex()}"


def _check_title(path: str, handle: Handle, device: str) -> None:
    if os.readlink(path) != f"/memfd:{_title(handle.name)} (deleted)":  # noqa: PTH115 -- as below
        raise invalid_handle(f"process {handle.process} no longer shares this memory, or never did", device)


def _open_error(error: OSError, handle: Handle, device: str) -> DeviceError:
    if error.errno in {errno.EACCES, errno.EPERM}:
        message = f"process {handle.process}, which shares the memory, belongs to another user: {error.strerror}"
        return DeviceError(message, code=error.errno, call="open", device=device)
    if error.errno == errno.ENOENT:
        if os.path.exists(f"/proc/{handle.process}"):  # noqa: PTH110 -- a Path takes as long as the call
            return invalid_handle(f"process {handle.process} no longer shares this memory, or never did", device)
        return invalid_handle(f"process {handle.process}, which shared the memory, has ended", device)
    message = f"memory shared by process {handle.process} cannot be opened: {error.strerror}"
    return DeviceError(message, code=error.errno or 0, call="open", device=device)
