"""The thread with which this process offers its figures on its socket."""

from __future__ import annotations

import fcntl
import gc
import os
import select
import socket
from _thread import allocate_lock, get_ident, start_new_thread  # as programs replace those of `threading`
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from weakref import WeakSet

from forebay.observe.monitor import sockets
from forebay.signal_mask import signals_blocked

__all__ = ["Endpoint"]

_MIN_FD = 200  # high, so that the program's own file descriptors keep their numbers
_PAUSE = 1.0  # seconds after a failure, as when the process has no more file descriptors

_Identity = tuple[int, int]


class Endpoint:
    """A socket with the figures of this process, from `start` until `stop`.

    Notes
    -----
    `forebay run` has one. The thread is not one of `threading.enumerate()`, as programs wait for the end of all that
    are listed there. A fork waits up to a second for figures that are being collected. A forked child has no endpoint
    until it calls `start`.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._path = Path()
        self._identity: _Identity = (0, 0)
        self._collecting = allocate_lock()  # held while figures are collected, and during a fork
        self._forking: set[int] = set()  # threads that hold it for their fork
        self._started = monotonic()
        _endpoints.add(self)

    def start(self) -> None:
        """Listen and start the thread, unless there is one.

        Raises
        ------
        OSError
            If the socket cannot be created.
        """
        if self._socket is not None:
            return
        path = sockets.socket_path(os.getpid())
        unfinished = path.with_suffix(".new")  # under its own name the socket accepts connections
        listener = _with_high_descriptor(sockets.new_socket())
        try:
            unfinished.unlink(missing_ok=True)
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(str(unfinished))
            listener.listen()
            # A thread waits in poll(): Linux reserves the lowest free descriptor while one is blocked in accept().
            listener.setblocking(False)
            connections = select.poll()
            connections.register(listener, select.POLLIN)
            unfinished.replace(path)
            self._socket, self._path, self._identity = listener, path, _identity(listener)
            with signals_blocked():
                start_new_thread(self._serve, (listener, self._identity, connections))
        except BaseException as error:
            self._socket = None
            listener.close()
            for each in (unfinished, path):
                each.unlink(missing_ok=True)
            if isinstance(error, RuntimeError):  # the limit of threads
                raise OSError(str(error)) from None
            raise

    def stop(self) -> None:
        """Remove the socket and end the thread. Never raises."""
        listener, self._socket = self._socket, None
        if listener is None:
            return
        with suppress(Exception):
            if _identity(listener) == self._identity:
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        with suppress(Exception), sockets.connect(self._path):  # wakes it where the line above does not
            pass
        with suppress(Exception):
            self._path.unlink(missing_ok=True)

    def before_fork(self) -> None:
        """Wait until no figures are being collected."""
        if self._collecting.acquire(timeout=_PAUSE):
            self._forking.add(get_ident())

    def after_fork_in_parent(self) -> None:
        """Permit that figures are collected."""
        if get_ident() in self._forking:
            self._forking.discard(get_ident())
            self._collecting.release()

    def after_fork_in_child(self) -> None:
        """Close the parent's socket, whose thread does not exist here."""
        self._collecting, self._forking, self._started = allocate_lock(), set(), monotonic()
        listener, self._socket = self._socket, None
        if listener is not None:
            _close(listener, self._identity)

    def _serve(self, listener: socket.socket, identity: _Identity, connections: select.poll) -> None:
        """Serve requests until `stop`, or until the program closes the descriptor. Never raises."""
        try:
            while self._socket is listener and _identity(listener) == identity:
                try:
                    # The limit is for a program that has replaced the descriptor: poll() then waits for its file.
                    if not connections.poll(_PAUSE * 1000) or _identity(listener) != identity:
                        continue
                    descriptor, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - see new_socket
                except OSError:
                    if self._socket is listener:
                        sleep(_PAUSE)
                    continue
                with suppress(Exception), sockets.new_socket(fileno=descriptor) as connection:
                    if self._socket is listener:
                        self._reply(connection)
        finally:
            _close(listener, identity)

    def _reply(self, connection: socket.socket) -> None:
        """Send the figures. Raises what a client that has ended or sent nonsense, or a failing device, causes."""
        if not sockets.peer_is_trusted(connection):
            return
        sites = sockets.request_of(connection)
        if sockets.peer_has_ended(connection):
            return
        with self._collecting:
            collects_garbage = gc.isenabled()
            gc.disable()  # finalizers of the program may expect its own threads
            try:
                from forebay.observe.monitor.collect import collect  # not before: few runs are watched

                figures = collect(sites, self._started).to_json()
            finally:
                if collects_garbage:
                    gc.enable()
        connection.settimeout(sockets.TIMEOUT)
        connection.sendall(figures.encode())


_endpoints: WeakSet[Endpoint] = WeakSet()


def _before_fork() -> None:
    for each in tuple(_endpoints):
        each.before_fork()


def _after_fork_in_parent() -> None:
    for each in tuple(_endpoints):
        each.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for each in tuple(_endpoints):
        each.after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _with_high_descriptor(made: socket.socket) -> socket.socket:
    """Return the socket with a high descriptor, unless the limit of descriptors is lower."""
    try:
        high = fcntl.fcntl(made.fileno(), fcntl.F_DUPFD_CLOEXEC, _MIN_FD)
    except OSError:
        return made
    made.close()
    return sockets.new_socket(fileno=high)


def _close(listener: socket.socket, identity: _Identity) -> None:
    """Close the socket, unless the program has closed its descriptor, whose number may have a new use."""
    if _identity(listener) == identity:
        listener.close()
    else:
        listener.detach()


def _identity(listener: socket.socket) -> _Identity:
    """Return device and inode of the socket; zeros if its descriptor is closed."""
    try:
        status = os.fstat(listener.fileno())
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino
