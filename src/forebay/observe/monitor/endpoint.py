"""The thread with which this process offers its figures on its socket.

# Note [Endpoint in a foreign program]
The thread runs inside a program that knows nothing of it, and must not change what the program does. It is not in
`threading.enumerate()`, as programs wait for all threads that are listed there, and uses functions of `_thread`, as
programs replace those of `threading`. Its descriptors are high, so that the program's own keep their numbers, and are
checked before each use, as the program may close them all and get the same numbers for its files. Everything but the
wait for clients is done without garbage collection, which would run finalizers of the program in this thread: even the
result of `select.poll` may begin one, so that the wait is compiled (`CollectionFreeSection`). A fork waits a second at
most until this thread waits. A child has no endpoint, closes what it inherited, and collects garbage as the program
did. All clients are waited for at once, so that one that stops delays no other. Rejected: a thread for each client, and
a process beside the program, which cannot see its allocator.
Test: tests/observe/monitor/test_endpoint.py::test_finalizers_of_the_program_run_in_its_own_threads,
  tests/observe/monitor/test_endpoint.py::test_thread_is_not_listed_and_has_no_low_descriptor
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
from _thread import get_ident, start_new_thread  # as programs replace those of `threading`
from contextlib import suppress
from pathlib import Path
from time import monotonic
from weakref import WeakSet

from forebay._base.signal_mask import signals_blocked
from forebay.observe.monitor import sockets
from forebay.observe.monitor._waiting import CollectionFreeSection
from forebay.observe.monitor.exchanges import Exchange, Identity, close_unless_replaced, identity_of

__all__ = ["Endpoint"]

_MIN_FD = 200  # high, so that the program's own file descriptors keep their numbers
_PAUSE = 1.0  # seconds after a failure, as when the process has no more file descriptors
_MOST = 64  # clients at once; the oldest one makes room


class Endpoint:
    """A socket with the figures of this process, from `start` until `stop`.

    `forebay run` has one. The thread is not one of `threading.enumerate()`. A fork waits up to a second for figures
    that are being collected. A forked child has no endpoint until it calls `start`.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._path = Path()
        self._identity: Identity = (0, 0)
        self._exchanges: dict[int, Exchange] = {}  # by descriptor, the oldest first
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
            unfinished.replace(path)
            self._socket, self._path, self._identity = listener, path, identity_of(listener)
            with signals_blocked():  # see Note [Endpoint in a foreign program]
                start_new_thread(self._serve, (listener, self._identity))
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
            if identity_of(listener) == self._identity:
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        with suppress(Exception), sockets.connect(self._path):  # wakes it where the line above does not
            pass
        with suppress(Exception):
            self._path.unlink(missing_ok=True)

    def after_fork_in_child(self) -> None:
        """Close the parent's sockets, whose thread does not exist here."""
        self._started = monotonic()
        listener, self._socket = self._socket, None
        if listener is not None:
            close_unless_replaced(listener, self._identity)
        exchanges, self._exchanges = self._exchanges, {}
        for each in exchanges.values():  # their clients wait for the end of the reply
            each.close()

    def _serve(self, listener: socket.socket, identity: Identity) -> None:
        """Serve requests until `stop`, or until the program closes the descriptor. Never raises."""
        _section.enter()  # first, see the note
        exchanges = self._exchanges = {}
        number = listener.fileno()
        try:
            while self._socket is listener and identity_of(listener) == identity:
                try:
                    # The limit is for a program that has replaced the descriptor: poll() then waits for its file.
                    events = {number: select.POLLIN, **{each.number: each.events for each in exchanges.values()}}
                    ready = _section.wait(events, _seconds_left(exchanges))
                    if self._socket is not listener or identity_of(listener) != identity:
                        break
                    for each in ready:
                        if each != number and not self._advance(exchanges[each]):
                            exchanges.pop(each).close()
                    for late in [each for each in exchanges.values() if each.end <= monotonic()]:
                        exchanges.pop(late.number).close()
                    if number in ready:
                        self._accept(listener, exchanges)
                except (BlockingIOError, ConnectionAbortedError):  # the client has ended
                    continue
                except OSError:
                    if self._socket is listener:
                        _section.wait({}, _PAUSE)
        finally:
            for exchange in exchanges.values():
                exchange.close()
            close_unless_replaced(listener, identity)
            _section.leave()

    def _accept(self, listener: socket.socket, exchanges: dict[int, Exchange]) -> None:
        descriptor, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - see new_socket
        made = Exchange(_with_high_descriptor(sockets.new_socket(fileno=descriptor)))
        if replaced := exchanges.pop(made.number, None):
            replaced.close()  # the program has closed its descriptor, which the new one has now
        if not made.is_trusted:
            made.close()
            return
        exchanges[made.number] = made
        if len(exchanges) > _MOST:
            exchanges.pop(next(iter(exchanges))).close()

    def _advance(self, exchange: Exchange) -> bool:
        """Continue with a client. Returns False at the end, also after nonsense or the failure of a device."""
        try:
            if exchange.events == select.POLLOUT:
                return not exchange.send()
            stacks = exchange.receive()
            if stacks is None:
                return True
            if exchange.has_ended:
                return False
            exchange.reply(self._figures(stacks))
        except Exception:  # noqa: BLE001 - this client has no reply
            return False
        return True

    def _figures(self, stacks: int) -> bytes:
        """Collect the figures. Raises what a failing device causes."""
        from forebay.observe.monitor.collect import collect  # not before: few runs are watched

        return collect(stacks, self._started).to_json().encode()


_endpoints: WeakSet[Endpoint] = WeakSet()
_section = CollectionFreeSection()
_forking: set[int] = set()  # threads that hold its lock for their fork


def _before_fork() -> None:
    """Wait until no thread of an endpoint is in the section."""
    if _section.lock.acquire(timeout=_PAUSE):
        _forking.add(get_ident())


def _after_fork_in_parent() -> None:
    if get_ident() in _forking:
        _forking.discard(get_ident())
        _section.lock.release()


def _after_fork_in_child() -> None:
    _section.after_fork_in_child()
    _forking.clear()
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


def _seconds_left(exchanges: dict[int, Exchange]) -> float:
    """Return the seconds until a client must be dropped, at most the pause."""
    return min([_PAUSE, *[each.end - monotonic() for each in exchanges.values()]])
