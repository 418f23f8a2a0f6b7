"""Processes of a process group, each with emulated devices."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack

__all__ = ["free_ports", "run_ranks"]

_SECONDS = 120


def free_ports(count):
    """Return ports that no process uses."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [str(each.getsockname()[1]) for each in sockets]


def run_ranks(*command, count=2):
    """Run Python with arguments in each rank, and return what the last line of each prints, as JSON."""
    common = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(count), "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", *command], env={**os.environ, **common, "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    try:
        ended = [process.communicate(timeout=_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * count, ended
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]
