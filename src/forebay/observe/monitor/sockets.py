"""Unix sockets on which processes offer their figures to other processes of the same user.

Each process listens on `PID.sock` in a directory that only the user can access. A request is a line with the number of
call stacks; the reply is the JSON of `ProcessFigures`.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay._base.trusted_folders import make_folder, open_folder

if TYPE_CHECKING:
    from forebay.observe.monitor.figures import ProcessFigures

__all__ = [
    "TIMEOUT",
    "connect",
    "directory",
    "listening",
    "new_socket",
    "peer_has_ended",
    "peer_is_trusted",
    "read_process",
    "request_of",
    "socket_path",
]

TIMEOUT = 2.0  # seconds for a whole request
_MAX_REPLY = 1 << 22  # bytes
_MAX_STACKS = 10_000
_MAX_PATH = 100  # bytes; Linux allows 107, macOS 103
_Socket = socket.socket  # programs replace the name, for example to forbid connections in tests


def new_socket(**arguments: Any) -> socket.socket:
    """Return a Unix socket of the standard library, also if the program has replaced `socket.socket` since."""
    return _Socket(socket.AF_UNIX, socket.SOCK_STREAM, **arguments)


def directory() -> Path:
    """Return the directory of the sockets: in XDG_RUNTIME_DIR if it is the user's, else in TMPDIR or /tmp.

    Creates the directory. Raises PermissionError if it belongs to another user, or others can access it.
    """
    base = _runtime_directory()
    if base is not None:
        found = base / "forebay"
    else:  # without the module tempfile, which would keep the folder for the program
        base = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - checked below
        found = (base if base.is_absolute() else Path("/tmp")) / f"forebay-{os.geteuid()}"  # noqa: S108 - as above
    os.close(open_folder(found.parent))  # its owner could replace the directory
    with suppress(FileExistsError):  # a file: see below
        make_folder(found, private=True)
    status = found.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{str(found)!r} is not a directory")
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{str(found)!r} belongs to another user")
    if status.st_mode & 0o077:
        raise PermissionError(f"{str(found)!r} must have mode 0700, as others could access the sockets in it")
    return found


def _runtime_directory() -> Path | None:
    """Return XDG_RUNTIME_DIR if it is a directory of the user, as its specification demands."""
    base = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    try:
        return base if base.is_absolute() and base.is_dir() and base.stat().st_uid == os.geteuid() else None
    except OSError:
        return None


def socket_path(pid: int) -> Path:
    """Return the path of a process's socket. Raises OSError as `directory` does, or if the path is too long."""
    path = directory() / f"{pid}.sock"
    if len(os.fsencode(path)) > _MAX_PATH:
        text = f"the path of a socket has at most {_MAX_PATH} bytes: {str(path)!r}; set XDG_RUNTIME_DIR or TMPDIR"
        raise OSError(text)
    return path


def listening() -> list[int]:
    """Return the ids of the processes with a socket, and remove the sockets of processes that have ended.

    Raises
    ------
    OSError
        If the directory cannot be created, or belongs to another user.
    """
    found = []
    for path in directory().glob("*.sock"):
        if path.stem.isdecimal():
            if _exists(int(path.stem)):
                found.append(int(path.stem))
            else:
                path.unlink(missing_ok=True)
    return sorted(found)


def read_process(pid: int, stacks: int = 0) -> ProcessFigures:
    """Request the figures of another process.

    Parameters
    ----------
    pid : int
        Process id.
    stacks : int, default 0
        The most call stacks of each device.

    Raises
    ------
    OSError
        If the process does not exist, offers no figures, or does not reply within two seconds.
    ValueError
        If the reply is not valid.
    """
    from forebay.observe.monitor.figures import ProcessFigures

    end = time.monotonic() + TIMEOUT
    with connect(socket_path(pid)) as connection:
        connection.sendall(b"%d\n" % stacks)
        if not (reply := _receive(connection, end, _MAX_REPLY)):
            raise ValueError("the reply is empty")
    found = ProcessFigures.from_json(reply)
    if found.pid != pid:
        raise ValueError(f"the reply is of process {found.pid}")
    if len({device.device for device in found.devices}) < len(found.devices):
        raise ValueError("the reply has a device twice")
    return found


def connect(path: Path) -> socket.socket:
    """Return a connection. Raises OSError."""
    connection = new_socket()
    try:
        connection.settimeout(TIMEOUT)
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def request_of(line: bytes) -> int:
    """Return the number of stacks of a request. Raises ValueError."""
    line = line.removesuffix(b"\n")
    if not line.isdigit():
        raise ValueError("a request is a number of stacks")
    return min(int(line), _MAX_STACKS)


def peer_has_ended(connection: socket.socket) -> bool:
    """Return True if the other process has closed the connection."""
    poll = select.poll()
    poll.register(connection, select.POLLHUP)
    return bool(poll.poll(0))


def peer_is_trusted(connection: socket.socket) -> bool:
    """Return True if the other process belongs to the same user or root, as far as the system reports it."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the directory's permissions are the only check
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid in (0, os.geteuid())


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _receive(connection: socket.socket, end: float, most: int) -> bytes:
    """Read to the end of the stream. Raises TimeoutError, or ValueError above `most` bytes."""
    received = bytearray()
    while True:
        connection.settimeout(max(0.001, end - time.monotonic()))
        part = connection.recv(1 << 16)
        if not part:
            return bytes(received)
        received += part
        if len(received) > most:
            raise ValueError(f"more than {most:,} bytes were sent")
        if time.monotonic() > end:
            raise TimeoutError(f"no complete message within {TIMEOUT:.0f} seconds")
