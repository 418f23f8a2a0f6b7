"""Helpers of the conformance suite, also for vendors' own tests."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import pytest

import forebay
from forebay import backends
from forebay._base.device_spec import Device
from forebay.runtime.devices.current import opened_for
from forebay.runtime.streams.stream import Stream
from forebay.spi import Emulates, Launches, Port, Queue, Resizable

__all__ = [
    "BAD_SIZES",
    "MIB",
    "Gate",
    "NativeGate",
    "Scratch",
    "Unbacked",
    "drain",
    "enqueue_call",
    "expect_memory",
    "libc_address",
    "needs",
    "needs_memory",
    "other_device",
    "port_of",
    "read_back",
    "run_in_child",
    "run_in_new_process",
]

MIB = 1 << 20
BAD_SIZES: tuple[Any, ...] = (0, -1, 1 << 63, 1 << 64, 1.5, "4096", None)
_SETTLED, _DRIVERS_OWN = 1.0, 4 * MIB  # seconds and bytes of a driver that frees memory later
_LIMIT = 20  # seconds; bounds waits that would otherwise block forever

_Test = Callable[..., None]


@runtime_checkable
class Unbacked(Protocol):
    """A Port without memory behind its addresses, whose work runs only when the host waits for it."""

    @property
    def unbacked(self) -> bool:
        """Present on such a port; its value is not read."""


def port_of(device: Device) -> Port:
    """Return the port that the runtime has opened for a device, which is opened if necessary."""
    return opened_for(device).port


def expect_memory(port: Port, expected: tuple[int, int]) -> None:
    """Assert how many free and total bytes a device has.

    A driver of hardware may keep some memory for its own tables, and return some of it a moment later: such a device
    has a second, and may differ by 4 MiB. Where forebay counts the memory itself, the numbers are exact.
    """
    counted = port.props.emulated or isinstance(port, Resizable)
    slack, end = (0, 0.0) if counted else (_DRIVERS_OWN, time.monotonic() + _SETTLED)
    while True:
        free, total = port.memory_info()
        if total == expected[1] and abs(free - expected[0]) <= slack:
            return
        if time.monotonic() >= end:
            break
        time.sleep(0.01)
    raise AssertionError(f"{free} of {total} bytes are free, {free - expected[0]:+} of what is expected: {expected}")


def _port(fixtures: dict[str, Any]) -> Port:
    """Return the port under test: the fixture `port`, or the runtime's port of the fixture `device`."""
    port: Port = fixtures["port"] if "port" in fixtures else port_of(fixtures["device"])
    return port


def needs(*abilities: type) -> Callable[[_Test], _Test]:
    """Skip a test if neither the port nor its queues have all these Protocols of `forebay.spi`.

    The test has the fixture `port` or `device`.
    """

    def decorate(test: _Test) -> _Test:
        @functools.wraps(test)
        def checked(**fixtures: Any) -> None:
            port = _port(fixtures)
            queue = port.queue()
            queue.close()
            for ability in abilities:
                if not (isinstance(queue, ability) or isinstance(port, ability)):
                    pytest.skip(f"{port.props.kind} lacks the ability {ability.__name__}")
            test(**fixtures)

        return checked

    return decorate


def needs_memory(test: _Test) -> _Test:
    """Skip a test on ports without memory, such as fake ones.

    Tests need it that read data, or that expect work to progress without a wait of the host. They have the fixture
    `port` or `device`.
    """

    @functools.wraps(test)
    def checked(**fixtures: Any) -> None:
        if isinstance(_port(fixtures), Unbacked):
            pytest.skip("there is no memory behind this port's addresses")
        test(**fixtures)

    return checked


def enqueue_call(stream: Stream, function: Callable[[], object]) -> None:
    """Queue a call of a Python function on a stream, whose queue must have the ability `Launches`."""
    queue = stream.queue
    assert isinstance(queue, Launches)
    queue.call(function)


def other_device(device: Device) -> Device:
    """Return the next device of the same kind, cyclically. Skip the test if there is none."""
    count = forebay.device_count(device.kind)
    if count < 2:
        pytest.skip(f"there is no other device of kind {device.kind}")
    return Device(device.kind, ((device.index or 0) + 1) % count)


class Scratch:
    """Device memory that is initialized with data."""

    def __init__(self, port: Port, data: bytes) -> None:
        self.nbytes: int = len(data)
        self.address: int = port.reserve(self.nbytes)
        source = ctypes.create_string_buffer(data, self.nbytes)
        queue = port.queue()
        queue.copy(self.address, ctypes.addressof(source), self.nbytes)
        drain(queue)
        queue.close()


def read_back(queue: Queue, scratch: Scratch) -> bytes:
    """Return the contents of memory after all queued work of a queue."""
    target = ctypes.create_string_buffer(scratch.nbytes)
    queue.copy(ctypes.addressof(target), scratch.address, scratch.nbytes)
    drain(queue)
    return target.raw


def drain(queue: Queue) -> None:
    """Wait until all queued work has completed."""
    queue.wait(queue.signal())


class Gate:
    """Host function that blocks a queue until `open` is called.

    Queue the gate with `Launches.call`. A gate that stays closed for 20 seconds fails.
    """

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> None:
        assert self._event.wait(_LIMIT), "the gate was not opened in time"

    def open(self) -> None:
        """Let the queue continue."""
        self._event.set()


class NativeGate:
    """Native function that blocks a queue without running Python code.

    Queue it with `Launches.call_native(gate.function, gate.argument)`. The thread that created the gate must open it,
    once.
    """

    def __init__(self) -> None:
        self._mutex = ctypes.create_string_buffer(256)  # larger than pthread_mutex_t on any system
        libc = ctypes.CDLL(None)
        assert libc.pthread_mutex_init(self._mutex, None) == 0
        assert libc.pthread_mutex_lock(self._mutex) == 0
        self._unlock = libc.pthread_mutex_unlock
        self.function: int = libc_address("pthread_mutex_lock")
        self.argument: int = ctypes.addressof(self._mutex)

    def open(self) -> None:
        """Let the queue continue."""
        assert self._unlock(self._mutex) == 0


def libc_address(name: str) -> int:
    """Return the address of a function of the C library."""
    address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    assert address
    return address


def run_in_child(check: Callable[[], None]) -> str:
    """Run a check, which raises if it fails, in a forked child process.

    Return the child's traceback, or "" if the check passed. A child that does not exit within 20 seconds is killed and
    reported.
    """
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is intended
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LIMIT)
        try:
            check()
        except BaseException:  # noqa: BLE001 - the parent reports any exception
            os.write(write_end, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        failure = pipe.read()
    _, status = os.waitpid(child, 0)
    return failure or (f"the child hung and was killed by signal {status}" if status else "")


def run_in_new_process(device: Device, program: str) -> str:
    """Run a program in a new process, which must succeed and write no errors. Return its standard output.

    The program may use `forebay` and the device's name as `name`. The device is emulated there, too, if it is emulated.
    """
    driver, settings = backends.driver(device.kind), dict[str, str]()
    if isinstance(driver, Emulates):
        settings["FOREBAY_EMULATE"] = f"{device.kind}:{driver.count()}@{driver.profile.name}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import forebay\nname = {str(device)!r}\n{program}"],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
