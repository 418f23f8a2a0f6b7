"""The socket of a process: requests, hostile clients and directories, forks, descriptors that the program closes."""

from __future__ import annotations

import gc
import os
import resource
import socket
import stat
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.observe.monitor import endpoint as endpoints
from forebay.observe.monitor import sockets
from forebay.observe.monitor.endpoint import Endpoint
from forebay.observe.monitor.machine import read_machine

from .test_figures import PROCESS

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
LIMIT = 20.0  # seconds


@pytest.fixture
def endpoint(runtime_directory):
    made = Endpoint()
    made.start()
    yield made
    made.stop()


def eventually(is_so) -> bool:
    """Return True if the condition holds within the limit; the endpoint's thread cannot be joined."""
    end = time.monotonic() + LIMIT
    while not is_so() and time.monotonic() < end:
        os.sched_yield()
    return is_so()


def open_descriptors() -> set[int]:
    return {int(each.name) for each in Path("/proc/self/fd").iterdir() if each.exists()}


def connection() -> socket.socket:
    made = sockets.connect(sockets.socket_path(os.getpid()))
    made.settimeout(LIMIT)
    return made


def reply_to(request: bytes) -> bytes:
    with connection() as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        return client.recv(1 << 20)


def test_figures_are_read_until_it_stops(endpoint):
    assert sockets.listening() == [os.getpid()]
    assert sockets.read_process(os.getpid()).pid == os.getpid()
    assert sockets.read_process(os.getpid(), 5).seconds > 0
    endpoint.stop()
    endpoint.stop()
    assert sockets.listening() == []
    with pytest.raises(FileNotFoundError):
        sockets.read_process(os.getpid())
    endpoint.start()
    assert sockets.listening() == [os.getpid()]


def test_only_the_owner_can_access_the_socket(endpoint, runtime_directory):
    path = sockets.socket_path(os.getpid())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_thread_is_not_listed_and_has_no_low_descriptor(endpoint):
    assert not [each for each in threading.enumerate() if "monitor" in each.name or "Dummy" in each.name]
    sockets.read_process(os.getpid())
    assert threading.active_count() == len(threading.enumerate())
    lowest = os.dup(0)
    os.close(lowest)
    assert lowest < 200 <= endpoint._socket.fileno()


@pytest.mark.parametrize(
    "request_line",
    [b"", b"\n", b"{}\n", b"-1\n", b"1 2\n", b"1.5\n", b"\xff\n", b"\xb2\n", b"x" * 5000, b"9" * 5000],
)
def test_invalid_request_has_no_reply_and_ends_nothing(endpoint, request_line):
    assert reply_to(request_line) == b""
    assert sockets.read_process(os.getpid()).pid == os.getpid()


def test_silent_client_delays_no_fork(endpoint, monkeypatch):
    monkeypatch.setattr(sockets, "TIMEOUT", 0.2)
    with connection():
        assert endpoints._section.lock.acquire(timeout=LIMIT)  # what a fork waits for
        endpoints._section.lock.release()
    assert sockets.read_process(os.getpid()).pid == os.getpid()


@pytest.mark.parametrize("kind", ["silent", "half a request", "slow reader", "ended"])
def test_clients_that_stop_delay_no_other(endpoint, monkeypatch, kind):
    from forebay.observe.monitor import collect

    if kind == "slow reader":  # a reply that does not fit the buffers
        monkeypatch.setattr(collect, "_program", lambda: "x" * 2_000_000)
    with ExitStack() as stack:
        for _ in range(30):
            client = stack.enter_context(connection())
            if kind != "silent":
                client.sendall(b"1" if kind == "half a request" else b"1\n")
            if kind == "ended":
                client.close()
        began = time.monotonic()
        for _ in range(3):
            assert sockets.read_process(os.getpid()).pid == os.getpid()
        assert time.monotonic() - began < sockets.TIMEOUT * 0.9


def test_clients_that_stop_are_dropped_in_time(endpoint, monkeypatch):
    monkeypatch.setattr(sockets, "TIMEOUT", 0.05)
    with connection() as silent, connection() as half:
        half.sendall(b"1")
        assert silent.recv(1) == half.recv(1) == b""
    assert endpoint._exchanges == {}


def test_clients_are_limited_in_number_and_the_oldest_makes_room(endpoint, monkeypatch):
    monkeypatch.setattr("forebay.observe.monitor.endpoint._MOST", 5)
    monkeypatch.setattr(sockets, "TIMEOUT", LIMIT)
    with ExitStack() as stack:
        clients = [stack.enter_context(connection()) for _ in range(7)]
        assert clients[0].recv(1) == clients[1].recv(1) == b""
        clients[2].sendall(b"0\n")
        assert clients[2].recv(1) == b"{"


def test_forked_child_holds_no_connection(endpoint):
    with connection() as client:
        client.sendall(b"1")
        assert eventually(lambda: len(endpoint._exchanges) == 1)
        if (child := os.fork()) == 0:
            os._exit(len(endpoint._exchanges))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        client.sendall(b"\n")
        assert client.recv(1) == b"{"


def test_two_forks_at_once_release_the_lock(monkeypatch):
    """The first holds it so long that the second does not get it, and ends first."""
    monkeypatch.setattr("forebay.observe.monitor.endpoint._PAUSE", 0.01)
    endpoints._before_fork()
    other = threading.Thread(target=lambda: (endpoints._before_fork(), endpoints._after_fork_in_parent()))
    other.start()
    other.join(LIMIT)
    assert endpoints._section.lock.locked()
    endpoints._after_fork_in_parent()
    assert not endpoints._section.lock.locked()


def test_starting_and_stopping_keeps_no_descriptor(endpoint):
    def descriptors() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    before = descriptors()
    for _ in range(20):
        endpoint.stop()
        endpoint.start()
        endpoint.start()
    assert eventually(lambda: descriptors() <= before)


def test_socket_accepts_connections_as_soon_as_it_has_its_name(runtime_directory, monkeypatch):
    """Otherwise another process takes it for the socket of an ended process."""
    seen, listen = [], socket.socket.listen
    monkeypatch.setattr(
        socket.socket, "listen", lambda made, *n: (seen.append(sockets.listening()), listen(made, *n))[1]
    )
    made = Endpoint()
    made.start()
    made.stop()
    assert seen == [[]]


@pytest.mark.parametrize("replaced", ["socket.socket", "threading.Lock", "_thread.start_new_thread"])
def test_program_that_replaces_standard_functions_is_not_disturbed(runtime_directory, monkeypatch, replaced):
    def refuse(*_, **__):
        raise RuntimeError("not in this program")

    made = Endpoint()
    monkeypatch.setattr(replaced, refuse)
    made.start()
    assert sockets.listening() == [os.getpid()]
    if replaced == "socket.socket":
        assert sockets.read_process(os.getpid()).pid == os.getpid()
    made.stop()


@pytest.mark.parametrize("collects_garbage", [True, False])
def test_finalizers_of_the_program_run_in_its_own_threads(endpoint, collects_garbage):
    class Finalized:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            threads.append(threading.get_ident())

    threads, thresholds = [], gc.get_threshold()
    try:
        for _ in range(10):
            threads.clear()
            with connection() as client:
                gc.disable()
                Finalized()
                with endpoints._section.lock:  # the endpoint waits
                    gc.set_threshold(1)  # now the next object that any thread makes may begin a collection
                if collects_garbage:
                    gc.enable()
                client.sendall(b"5\n")
                client.recv(1 << 20)  # makes bytes, which begin none
                assert gc.isenabled() is collects_garbage
            gc.collect()
            assert threads == [threading.get_ident()]
            with endpoints._section.lock:
                assert gc.get_threshold() == (1, *thresholds[1:])
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()


def test_program_that_changes_its_garbage_collection_meanwhile_is_obeyed(endpoint, monkeypatch):
    from forebay.observe.monitor import collect

    thresholds, collect_all = gc.get_threshold(), collect.collect

    def change(*given):
        gc.disable()
        gc.set_threshold(123)
        return collect_all(*given)

    monkeypatch.setattr(collect, "collect", change)
    try:
        sockets.read_process(os.getpid())
        with endpoints._section.lock:
            assert (gc.isenabled(), gc.get_threshold()[0]) == (False, 123)
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()


def test_child_of_a_fork_that_does_not_wait_collects_garbage(endpoint, monkeypatch):
    """A thread collects figures for longer than the fork waits."""
    monkeypatch.setattr(endpoints, "_PAUSE", 0.01)
    section = endpoints._section
    with section.lock:  # another process may ask the endpoint for figures
        threshold = gc.get_threshold()
    section.enter()
    assert gc.get_threshold()[0] == 0
    if (child := os.fork()) == 0:
        os._exit(0 if gc.get_threshold() == threshold and not endpoints._section.lock.locked() else 1)
    section.leave()
    assert gc.get_threshold() == threshold
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_forked_child_has_no_endpoint_and_leaves_its_parents(endpoint):
    if (child := os.fork()) == 0:
        endpoint.stop()
        os._exit(0 if endpoint._socket is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sockets.read_process(os.getpid()).pid == os.getpid()


def test_descriptor_that_the_program_closed_and_used_again_is_left_alone(endpoint):
    number = endpoint._socket.fileno()
    replacement, other = socket.socketpair()
    os.dup2(replacement.fileno(), number)
    sockets_before = os.fstat(number).st_ino
    with suppress(ConnectionError), connection() as client:  # wakes a thread that still waits for one
        client.shutdown(socket.SHUT_WR)
        client.recv(1)
    assert os.fstat(number).st_ino == sockets_before
    os.close(number)
    replacement.close()
    other.close()


def test_socket_of_an_ended_process_is_removed(runtime_directory):
    path = sockets.directory() / "4194305.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(str(path))
    (sockets.directory() / "notes.sock").touch()
    assert sockets.listening() == []
    assert not path.exists()
    assert (sockets.directory() / "notes.sock").exists()


@pytest.mark.parametrize(
    ("kind", "message"),
    [("open to others", "must have mode 0700"), ("file", "is not a directory"), ("link", "is not a directory")],
)
def test_directory_that_others_control_is_refused(runtime_directory, kind, message):
    folder = runtime_directory / "forebay"
    if kind == "open to others":
        folder.mkdir()
        folder.chmod(0o755)
    elif kind == "file":
        folder.touch(0o600)
    else:
        (runtime_directory / "elsewhere").mkdir(0o700)
        folder.symlink_to("elsewhere")
    with pytest.raises(PermissionError, match=message):
        Endpoint().start()
    with pytest.raises(PermissionError):
        sockets.listening()


def test_path_that_is_too_long_is_one_error(monkeypatch, tmp_path):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    with pytest.raises(OSError, match=r"at most 100 bytes: .*; set XDG_RUNTIME_DIR or TMPDIR"):
        Endpoint().start()


@pytest.mark.parametrize("value", ["", "relative", "/no/such/directory"])
def test_directory_for_temporary_files_is_used_without_a_runtime_directory(monkeypatch, tmp_path, value):
    monkeypatch.setenv("XDG_RUNTIME_DIR", value)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert sockets.directory() == tmp_path / f"forebay-{os.geteuid()}"
    assert tempfile.tempdir is None  # a program may change TMPDIR before it uses the module


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a directory of another user")
def test_runtime_directory_of_another_user_is_not_used(monkeypatch, tmp_path):
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", 1000, 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert sockets.directory().parent == tmp_path
    assert not list((tmp_path / "run").iterdir())
    os.chown(sockets.directory(), 1000, 1000)
    with pytest.raises(PermissionError, match="belongs to another user"):
        sockets.directory()


def test_reply_that_is_not_valid_is_one_failure(runtime_directory):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(sockets.socket_path(1)))
        server.listen()
        twice = replace(PROCESS, pid=1, devices=PROCESS.devices * 2).to_json().encode()

        def serve() -> None:
            for reply in (b'{"pid": 1}', b"x" * (5 << 20), PROCESS.to_json().encode(), twice, b""):
                client, _ = server.accept()
                with client:
                    client.recv(100)
                    with suppress(OSError):
                        client.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        assert "must be an object with the keys" in read_machine([1]).failures[1]
        assert "more than 4,194,304 bytes" in read_machine([1]).failures[1]
        assert "the reply is of process 7" in read_machine([1]).failures[1]
        assert "the reply has a device twice" in read_machine([1]).failures[1]
        assert "the reply is empty" in read_machine([1]).failures[1]
        thread.join(LIMIT)


def test_process_without_a_socket_is_one_failure(runtime_directory):
    assert "not started by forebay run" in read_machine([2]).failures[2]


def test_process_that_ends_while_it_is_listed_is_no_failure(runtime_directory, monkeypatch):
    monkeypatch.setattr(sockets, "listening", lambda: [2])
    assert read_machine().failures == {}


def test_process_that_does_not_accept_is_a_failure(runtime_directory, monkeypatch):
    monkeypatch.setattr(sockets, "TIMEOUT", 0.2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(sockets.socket_path(os.getpid())))
        server.listen(1)
        assert "did not reply" in read_machine().failures[os.getpid()]


def test_missing_thread_is_an_os_error_and_leaves_nothing(runtime_directory, monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    made = Endpoint()
    with monkeypatch.context() as patch:
        patch.setattr("forebay.observe.monitor.endpoint.start_new_thread", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            made.start()
    assert list((runtime_directory / "forebay").iterdir()) == []
    made.start()
    assert sockets.listening() == [os.getpid()]
    made.stop()


def test_socket_that_cannot_be_bound_leaves_nothing(runtime_directory, monkeypatch):
    def refuse(*_):
        raise PermissionError("not here")

    made = Endpoint()
    before = open_descriptors()
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(PermissionError, match="not here"):
        made.start()
    assert list((runtime_directory / "forebay").iterdir()) == []
    assert open_descriptors() <= before
    made.stop()


def test_low_limit_of_descriptors_is_no_failure(runtime_directory):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, before[1]))
    made = Endpoint()
    try:
        made.start()
        assert sockets.read_process(os.getpid()).pid == os.getpid()
        assert made._socket.fileno() < 150
    finally:
        made.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_process_of_another_user_has_no_reply(endpoint, monkeypatch):
    monkeypatch.setattr(sockets, "peer_is_trusted", lambda _: False)
    with connection() as client, suppress(ConnectionError):  # it is closed without reading
        client.sendall(b"5\n")
        assert client.recv(1) == b""


def test_failure_to_accept_is_repeated_after_a_pause(runtime_directory, monkeypatch):
    """An `accept` that fails, as it does if the process has no free file descriptor."""
    failures, accept = [], socket.socket._accept

    def fail_once(listener):
        if not failures:
            failures.append(time.monotonic())
            raise OSError("Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "_accept", fail_once)
    monkeypatch.setattr("forebay.observe.monitor.endpoint._PAUSE", 0.1)
    made = Endpoint()
    made.start()
    assert sockets.read_process(os.getpid()).pid == os.getpid()
    made.stop()
    assert time.monotonic() - failures[0] >= 0.1


def test_nothing_is_collected_for_a_client_that_has_ended(endpoint, monkeypatch):
    from forebay.observe.monitor import collect

    ended, requests, collected = threading.Event(), [], []
    request_of, collect_all = sockets.request_of, collect.collect

    def request_after_the_end(client):
        if not requests:
            assert ended.wait(LIMIT)
        requests.append(request_of(client))
        return requests[-1]

    monkeypatch.setattr(sockets, "request_of", request_after_the_end)
    monkeypatch.setattr(
        collect, "collect", lambda sites, since: (collected.append(sites), collect_all(sites, since))[1]
    )
    with connection() as client:
        client.sendall(b"5\n")
    ended.set()
    sockets.read_process(os.getpid(), 7)
    assert (requests, collected) == ([5, 7], [7])
