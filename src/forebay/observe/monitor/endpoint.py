"""The thread with which this process offers its figures on its socket."""

from __future__ import annotations

import _thread
import fcntl
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from forebay.observe.monitor import sockets
from forebay.signal_mask import signals_blocked

__all__ = ["Endpoint"]

_MIN_FD = 200  # high, so that the program's own file descriptors keep their numbers
_PAUSE = 1.0  # seconds after a failure, as when the process has no more file descriptors


class Endpoint:
    """A socket with the figures of this process, from `start` until `stop`.

    Notes
    -----
    `forebay run` has one. The thread is not one of `threading.enumerate()`, as programs wait for the end of all that
    are listed there. A forked child has no endpoint until it calls `start`; no request is served during a fork.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._path, self._identity = Path(), (0, 0)
        self._collecting = threading.Lock()  # held while figures are collected, and during a fork
        self._fork_waited = False
        self._started = time.monotonic()
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork_in_parent,
            after_in_child=self._after_fork_in_child,
        )

    def start(self) -> None:
        """Listen and start the thread.

        Raises
        ------
        OSError
            If the socket cannot be created.
        """
        path = sockets.socket_path(os.getpid())
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(OSError, ValueError):  # the limit of descriptors is lower
            high = fcntl.fcntl(listener.fileno(), fcntl.F_DUPFD_CLOEXEC, _MIN_FD)
            listener.close()
            listener = socket.socket(fileno=high)
        try:
            path.unlink(missing_ok=True)  # of an ended process with the same id
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(str(path))
            listener.listen()
            self._socket, self._path, self._identity = listener, path, _identity(listener)
            with signals_blocked():
                _thread.start_new_thread(self._serve, (listener,))
        except (OSError, RuntimeError) as error:
            self._socket = None
            listener.close()
            path.unlink(missing_ok=True)
            raise error if isinstance(error, OSError) else OSError(str(error)) from None

    def stop(self) -> None:
        """Remove the socket and end the thread. Never raises."""
        listener, self._socket = self._socket, None
        if listener is None:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wake:
            wake.settimeout(_PAUSE)
            wake.connect(str(self._path))
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _before_fork(self) -> None:
        self._fork_waited = self._collecting.acquire(timeout=_PAUSE)

    def _after_fork_in_parent(self) -> None:
        if self._fork_waited:
            self._collecting.release()

    def _after_fork_in_child(self) -> None:
        self._collecting, self._started = threading.Lock(), time.monotonic()
        listener, self._socket = self._socket, None
        if listener is not None:
            self._close(listener)

    def _close(self, listener: socket.socket) -> None:
        """Close the socket, unless the program has closed its descriptor, whose number may have a new use."""
        if _identity(listener) == self._identity:
            listener.close()
        else:
            listener.detach()

    def _serve(self, listener: socket.socket) -> None:
        """Serve requests until `stop`, or until the program closes the descriptor. Never raises."""
        try:
            while self._socket is listener and _identity(listener) == self._identity:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    time.sleep(_PAUSE)
                    continue
                with connection:
                    if self._socket is listener:
                        self._reply(connection)
        finally:
            self._close(listener)

    def _reply(self, connection: socket.socket) -> None:
        with suppress(Exception):  # the other process has ended or sent nonsense, or a device failed; it has no reply
            if sockets.peer_is_trusted(connection):
                sites = sockets.request_of(connection)
                with self._collecting:
                    from forebay.observe.monitor.collect import collect  # not before: few runs are watched

                    figures = collect(sites, self._started).to_json()
                connection.settimeout(sockets.TIMEOUT)
                connection.sendall(figures.encode())


def _identity(listener: socket.socket) -> tuple[int, int]:
    """Return device and inode of the socket; zeros if its descriptor is closed."""
    try:
        status = os.fstat(listener.fileno())
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino
