"""The socket of a process: requests, hostile clients and directories, forks, descriptors that the program closes."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from contextlib import suppress

import pytest

from forebay.observe.monitor import sockets
from forebay.observe.monitor.endpoint import Endpoint
from forebay.observe.monitor.machine import read_machine

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
LIMIT = 20.0  # seconds


@pytest.fixture
def endpoint(runtime_directory):
    made = Endpoint()
    made.start()
    yield made
    made.stop()


def connection() -> socket.socket:
    made = sockets._connect(sockets.socket_path(os.getpid()))
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


def test_silent_client_delays_neither_forks_nor_later_clients_for_long(endpoint):
    with connection():
        begin = time.monotonic()
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        assert time.monotonic() - begin < sockets.TIMEOUT / 2
        machine = read_machine([os.getpid()])  # served when the silent client's time is over, or refused for now
        assert set(machine.failures) | {each.pid for each in machine.processes} == {os.getpid()}
    assert sockets.read_process(os.getpid()).pid == os.getpid()


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
    with suppress(ConnectionRefusedError), connection() as client:  # wakes a thread that still accepts
        client.shutdown(socket.SHUT_WR)
        client.recv(1)
    deadline = time.monotonic() + LIMIT
    while endpoint._socket is not None and endpoint._socket.fileno() != -1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert os.fstat(number).st_ino == sockets_before
    os.close(number)
    replacement.close()
    other.close()


def test_socket_of_an_ended_process_is_removed(runtime_directory):
    path = sockets.directory() / "4194305.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(str(path))
    (sockets.directory() / "notes.sock").touch()
    (sockets.directory() / "12.sock").touch()
    assert sockets.listening() == []
    assert not path.exists()
    assert (sockets.directory() / "notes.sock").exists()


@pytest.mark.parametrize("kind", ["open to others", "file", "link"])
def test_directory_that_others_control_is_refused(runtime_directory, kind):
    folder = runtime_directory / "forebay"
    if kind == "open to others":
        folder.mkdir()
        folder.chmod(0o755)
    elif kind == "file":
        folder.touch(0o600)
    else:
        (runtime_directory / "elsewhere").mkdir(0o700)
        folder.symlink_to("elsewhere")
    with pytest.raises(PermissionError, match="must be a directory that only its owner can access"):
        Endpoint().start()
    with pytest.raises(PermissionError):
        sockets.listening()


def test_path_that_is_too_long_is_one_error(monkeypatch, tmp_path):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    with pytest.raises(OSError, match="AF_UNIX path too long"):
        Endpoint().start()


@pytest.mark.parametrize("value", ["", "relative", "/no/such/directory"])
def test_directory_for_temporary_files_is_used_without_a_runtime_directory(monkeypatch, tmp_path, value):
    monkeypatch.setenv("XDG_RUNTIME_DIR", value)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert sockets.directory() == tmp_path / f"forebay-{os.geteuid()}"


def test_reply_that_is_not_valid_is_one_failure(runtime_directory):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(sockets.socket_path(1)))
        server.listen()

        def serve() -> None:
            for reply in (b'{"pid": 1}', b"x" * (5 << 20)):
                client, _ = server.accept()
                with client:
                    client.recv(100)
                    with suppress(OSError):
                        client.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        assert "must be an object with the keys" in read_machine([1]).failures[1]
        assert "more than 4,194,304 bytes" in read_machine([1]).failures[1]
        thread.join(LIMIT)


def test_process_without_a_socket_is_one_failure(runtime_directory):
    assert "not started by forebay run" in read_machine([2]).failures[2]
