"""Sockets of processes: where they are, what a request is, and who may connect."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from forebay.observe.monitor import sockets


@pytest.fixture
def pair():
    """Two connected sockets: of the process that answers, and of the one that asks."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize(
    "runtime", ["", "relative", "/" + "x" * 5000, "/dev/null", "/nonexistent"], ids=lambda text: text[:12]
)
def test_unusable_runtime_directory_is_replaced(monkeypatch, tmp_path, runtime):
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert sockets.directory() == tmp_path / f"forebay-{os.geteuid()}"


@pytest.mark.parametrize(("line", "stacks"), [(b"0\n", 0), (b"007\n", 7), (b"10000\n", 10000), (b"10001\n", 10000)])
def test_request_is_a_limited_number_of_stacks(line, stacks):
    assert sockets.request_of(line) == stacks


@pytest.mark.parametrize("line", [b"\n", b"", b"-1\n", b"1.5\n", b"\xb2\n", b"1\n\n"])
def test_other_requests_are_refused(line):
    with pytest.raises(ValueError, match=r"^a request is a number of stacks$"):
        sockets.request_of(line)


def test_end_of_the_peer_is_noticed(pair):
    ours, theirs = pair
    assert not sockets.peer_has_ended(ours)
    theirs.sendall(b"1\n")
    assert not sockets.peer_has_ended(ours)
    theirs.close()
    assert sockets.peer_has_ended(ours)


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not report the user of a peer")
@pytest.mark.parametrize(("user", "trusted"), [(0, True), (1234, True), (1235, False)])
def test_peers_of_root_and_of_the_user_are_trusted(monkeypatch, user, trusted):
    class Connection:
        def getsockopt(self, level: int, option: int, size: int) -> bytes:
            assert (level, option, size) == (socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            return struct.pack("3i", 99, user, 77)

    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert sockets.peer_is_trusted(Connection()) is trusted


def test_own_process_is_trusted(pair):
    assert sockets.peer_is_trusted(pair[0])


def test_peers_are_trusted_where_their_users_are_unknown(monkeypatch, pair):
    monkeypatch.delattr(socket, "SO_PEERCRED", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert sockets.peer_is_trusted(pair[0])


def test_process_of_another_user_is_listed_and_an_ended_one_removed(monkeypatch, runtime_directory):
    """Only a process that exists and belongs to another user refuses a signal."""

    def kill(pid: int, number: int) -> None:
        assert number == 0
        if pid != 30:
            raise PermissionError if pid == 20 else ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    folder = sockets.directory()
    for pid in (10, 20, 30):
        (folder / f"{pid}.sock").touch()
    assert sockets.listening() == [20, 30]
    assert sorted(path.name for path in folder.iterdir()) == ["20.sock", "30.sock"]
