"""Unix sockets on which processes offer their figures to other processes of the same user.

Each process listens on `PID.sock` in a directory that only the user can access. A request is a line with the number of
allocation sites; the reply is the JSON of `ProcessFigures`.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.observe.monitor.figures import ProcessFigures

__all__ = ["TIMEOUT", "directory", "listening", "peer_is_trusted", "read_process", "request_of", "socket_path"]

TIMEOUT = 2.0  # seconds for a whole request
_MAX_REQUEST, _MAX_REPLY = 1 << 10, 1 << 22  # bytes
_MAX_SITES = 1000


def directory() -> Path:
    """Return the directory of the sockets, in XDG_RUNTIME_DIR or the directory for temporary files.

    Creates the directory. Raises PermissionError if it belongs to another user, or others can access it.
    """
    base = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if base.is_absolute() and base.is_dir():
        found = base / "forebay"
    else:
        import tempfile

        found = Path(tempfile.gettempdir(), f"forebay-{os.geteuid()}")
    with suppress(FileExistsError):
        found.mkdir(mode=0o700)
    status = found.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{str(found)!r} must be a directory that only its owner can access")
    return found


def socket_path(pid: int) -> Path:
    """Return the path of a process's socket. Raises OSError as `directory` does."""
    return directory() / f"{pid}.sock"


def listening() -> list[int]:
    """Return the ids of the processes that offer figures, and remove the sockets of processes that have ended.

    Raises
    ------
    OSError
        If the directory cannot be created, or belongs to another user.
    """
    found = []
    for path in directory().glob("*.sock"):
        if not path.stem.isdecimal():
            continue
        try:
            with _connect(path):
                found.append(int(path.stem))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:  # removed meanwhile, or not a socket
            continue
    return sorted(found)


def read_process(pid: int, sites: int = 0) -> ProcessFigures:
    """Request the figures of another process.

    Parameters
    ----------
    pid : int
        Process id.
    sites : int, default 0
        The most allocation sites of each device.

    Returns
    -------
    ProcessFigures
        The figures.

    Raises
    ------
    OSError
        If the process does not exist, offers no figures, or does not reply within two seconds.
    ValueError
        If the reply is not valid.
    """
    from forebay.observe.monitor.figures import ProcessFigures

    end = time.monotonic() + TIMEOUT
    with _connect(socket_path(pid)) as connection:
        connection.sendall(b"%d\n" % sites)
        if not (reply := _receive(connection, end, _MAX_REPLY)):
            raise ValueError("it sent none")
        return ProcessFigures.from_json(reply)


def request_of(connection: socket.socket) -> int:
    """Read a request and return its number of sites. Raises OSError or ValueError."""
    line = _receive(connection, time.monotonic() + TIMEOUT, _MAX_REQUEST, until=b"\n").removesuffix(b"\n")
    if not line.isdigit():
        raise ValueError("a request is a number of sites")
    return min(int(line), _MAX_SITES)


def peer_is_trusted(connection: socket.socket) -> bool:
    """Return True if the other process belongs to the same user or root, as far as the system reports it."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the directory's permissions are the only check
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid in (0, os.geteuid())


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(TIMEOUT)
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def _receive(connection: socket.socket, end: float, most: int, until: bytes = b"") -> bytes:
    """Read to the end of the stream or the first `until`. Raises TimeoutError, or ValueError above `most` bytes."""
    received = bytearray()
    while not (until and received.endswith(until)):
        connection.settimeout(max(0.001, end - time.monotonic()))
        part = connection.recv(1 << 16)
        if not part:
            break
        received += part
        if len(received) > most:
            raise ValueError(f"more than {most:,} bytes were sent")
        if time.monotonic() > end:
            raise TimeoutError(f"no complete message within {TIMEOUT:.0f} seconds")
    return bytes(received)
