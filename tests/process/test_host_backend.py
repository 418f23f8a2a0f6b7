"""The CPU device at process exit and after fork."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

OPEN = """
import os, sys, threading
from forebay.backends.host.driver import HostPort
from forebay.spi import DeviceProps
port = HostPort(DeviceProps("cpu", 0, "test", 1 << 26))
queue, memory = port.queue(), port.reserve(1 << 21)
queue.fill(memory, 7, 1 << 21)
tick = queue.signal()
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", OPEN + code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "code",
    [
        "",
        "queue.wait(tick)",
        "queue.wait(tick); queue.close()",
        "port.close()",
        "del queue; del port",
        "sys.exit(0)",
    ],
)
def test_process_exits_normally_with_an_open_device(code):
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_inherited_port_raises_forked_in_a_child():
    """Without `abandon`, too, nothing hangs and the child can read its copy of the memory."""
    done = run("""
import ctypes, signal
from forebay.errors import Forked
queue.wait(tick)
child = os.fork()
if child == 0:
    signal.alarm(30)
    for use in (queue.signal, port.queue, port.memory_info, lambda: port.reserve(4096), lambda: queue.wait(tick + 1)):
        try:
            use()
        except Forked as error:
            assert "before this process was forked" in str(error)
        else:
            os._exit(1)
    assert ctypes.string_at(memory, 8) == bytes([7]) * 8
    queue.wait(tick)
    queue.close()
    port.close()
    assert ctypes.string_at(memory, 8) == bytes([7]) * 8
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
port.close()
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_child_forked_during_a_reserve_continues():
    """The port's lock may be held at the fork; `after_fork_in_child` must not need it."""
    done = run("""
import signal
stop = threading.Event()
def busy():
    while not stop.is_set():
        port.release(port.reserve(4096))
thread = threading.Thread(target=busy)
thread.start()
for _ in range(50):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        port.after_fork_in_child()
        port.release(port.reserve(4096))
        port.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
thread.join()
port.close()
""")
    assert (done.returncode, done.stderr) == (0, "")
