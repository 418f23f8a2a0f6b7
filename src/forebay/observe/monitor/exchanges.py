"""Exchanges with clients: a request and its reply over a socket that never blocks, within a limited time."""

from __future__ import annotations

import os
import select
import socket
from time import monotonic

from forebay.observe.monitor import sockets

__all__ = ["Exchange", "Identity", "close_unless_replaced", "identity_of"]

_MAX_REQUEST = 1 << 10  # bytes
_PART = 1 << 16

Identity = tuple[int, int]


def identity_of(connection: socket.socket) -> Identity:
    """Return device and inode of the socket; zeros if its descriptor is closed."""
    try:
        status = os.fstat(connection.fileno())
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def close_unless_replaced(connection: socket.socket, identity: Identity) -> None:
    """Close the socket, unless the program has closed its descriptor, whose number may have a new use."""
    if identity_of(connection) == identity:
        connection.close()
    else:
        connection.detach()


class Exchange:
    """One client: its request, which may come in parts, and then the reply, which it may read slowly.

    The connection belongs to the exchange from now on.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.number: int = connection.fileno()
        self.end: float = monotonic() + sockets.TIMEOUT  # a client that is not done then is dropped
        self._connection = connection
        self._identity = identity_of(connection)
        self._received = bytearray()
        self._reply: memoryview | None = None

    @property
    def events(self) -> int:
        """Return the events that the exchange waits for, as for `select.poll`."""
        return select.POLLIN if self._reply is None else select.POLLOUT

    def receive(self) -> int | None:
        """Read what was sent. Return the requested number of stacks; None if the request is not complete.

        Raises
        ------
        OSError
            If the connection was lost, or the program closed its descriptor.
        ValueError
            If the request is invalid.
        """
        self._check()
        try:
            part = self._connection.recv(_PART)
        except (BlockingIOError, InterruptedError):
            return None
        self._received += part
        if len(self._received) > _MAX_REQUEST:
            raise ValueError(f"more than {_MAX_REQUEST:,} bytes were sent")
        if part and not self._received.endswith(b"\n"):
            return None
        return sockets.request_of(bytes(self._received))

    @property
    def is_trusted(self) -> bool:
        """True if the client belongs to the same user or root."""
        return sockets.peer_is_trusted(self._connection)

    @property
    def has_ended(self) -> bool:
        """True if the client has closed the connection."""
        return sockets.peer_has_ended(self._connection)

    def reply(self, content: bytes) -> None:
        """Begin to send the reply."""
        self._reply = memoryview(content)
        self.end = monotonic() + sockets.TIMEOUT

    def send(self) -> bool:
        """Send what the client has room for. Returns True at the end. Raises OSError if the connection was lost."""
        self._check()
        assert self._reply is not None  # noqa: S101 - see `events`
        try:
            while self._reply:
                self._reply = self._reply[self._connection.send(self._reply) :]
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def close(self) -> None:
        """Close the connection. Never raises."""
        close_unless_replaced(self._connection, self._identity)

    def _check(self) -> None:
        if identity_of(self._connection) != self._identity:
            raise OSError("the program has closed the descriptor")
