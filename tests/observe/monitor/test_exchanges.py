"""One client of an endpoint: its request in parts, a reply that it reads slowly, a descriptor that was replaced."""

from __future__ import annotations

import os
import select
import socket

import pytest

from forebay.observe.monitor.exchanges import Exchange


@pytest.fixture
def pair():
    """An exchange, and the client's socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    exchange = Exchange(ours)
    with theirs:
        yield exchange, theirs
    exchange.close()


def test_request_may_come_in_parts(pair):
    exchange, client = pair
    assert exchange.receive() is None
    for byte in b"12":
        client.sendall(bytes([byte]))
        assert exchange.receive() is None
    client.sendall(b"\n")
    assert exchange.receive() == 12


def test_request_may_end_with_the_stream(pair):
    exchange, client = pair
    client.sendall(b"3")
    client.shutdown(socket.SHUT_WR)
    assert exchange.receive() is None
    assert exchange.receive() == 3


def test_long_request_is_refused(pair):
    exchange, client = pair
    client.sendall(b"1" * 1025)
    with pytest.raises(ValueError, match="more than 1,024 bytes were sent"):
        exchange.receive()


def test_reply_continues_when_the_client_reads(pair):
    exchange, client = pair
    content = bytes(range(256)) * 8000
    assert exchange.events == select.POLLIN
    exchange.reply(content)
    assert exchange.events == select.POLLOUT
    read = bytearray()
    while not exchange.send():
        read += client.recv(1 << 16)
    exchange.close()
    while part := client.recv(1 << 16):
        read += part
    assert read == content


def test_end_of_the_client_is_an_error_of_the_reply(pair):
    exchange, client = pair
    exchange.reply(b"x" * (1 << 20))
    client.close()
    with pytest.raises(OSError, match="Broken pipe"):
        exchange.send()


def test_descriptor_that_the_program_replaced_is_left_alone(pair):
    exchange, _ = pair
    first, second = socket.socketpair()
    os.dup2(first.fileno(), exchange.number)
    exchange.reply(b"figures")
    for use in (exchange.receive, exchange.send):
        with pytest.raises(OSError, match="closed the descriptor"):
            use()
    exchange.close()
    with socket.socket(fileno=exchange.number) as replaced:
        replaced.sendall(b"alive")
    assert second.recv(10) == b"alive"
    first.close()
    second.close()
