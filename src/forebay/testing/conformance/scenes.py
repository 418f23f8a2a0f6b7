"""What the suite's tests are made of. For vendors' own tests, too."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import pytest

import forebay
from forebay import backends
from forebay.device_spec import Device
from forebay.runtime.devices.current import opened_for
from forebay.runtime.streams.stream import Stream
from forebay.spi import Emulates, Launches, Port, Queue, Reopens

__all__ = [
    "BAD_SIZES",
    "MIB",
    "Gate",
    "Imaginary",
    "NativeGate",
    "Scratch",
    "call",
    "drain",
    "in_child",
    "in_new_process",
    "native",
    "needs",
    "neighbour",
    "not_imaginary",
    "port_of",
    "read",
]

MIB = 1 << 20
BAD_SIZES: tuple[Any, ...] = (0, -1, 1 << 63, 1 << 64, 1.5, "4096", None)
_LIMIT = 20  # seconds, for what would else wait for ever

_OF_PORTS_ALONE = (Reopens,)  # a queue may have its method, `abandon`, for itself

_Test = Callable[..., None]


@runtime_checkable
class Imaginary(Protocol):
    """A Port with no memory behind its addresses, whose work is done only while somebody waits for it."""

    @property
    def imaginary(self) -> bool: ...


def port_of(device: Device) -> Port:
    """The port that the runtime has opened."""
    return opened_for(device).port


def _port(fixtures: dict[str, Any]) -> Port:
    """The one that the test is about."""
    port: Port = fixtures["port"] if "port" in fixtures else port_of(fixtures["device"])
    return port


def needs(*abilities: type) -> Callable[[_Test], _Test]:
    """Skips a test where neither the port nor its queues have an ability, one of the protocols in `forebay.spi`.

    The test asks for `port`, or for `device`.
    """

    def decorate(test: _Test) -> _Test:
        @functools.wraps(test)
        def checked(**fixtures: Any) -> None:
            port = _port(fixtures)
            queue = port.queue()
            queue.close()
            for ability in abilities:
                of_queue = ability not in _OF_PORTS_ALONE and isinstance(queue, ability)
                if not (of_queue or isinstance(port, ability)):
                    pytest.skip(f"{port.props.kind} lacks the ability {ability.__name__}")
            test(**fixtures)

        return checked

    return decorate


def not_imaginary(test: _Test) -> _Test:
    """Skips a test that looks at bytes, or at work going on by itself, on a port that has neither."""

    @functools.wraps(test)
    def checked(**fixtures: Any) -> None:
        if isinstance(_port(fixtures), Imaginary):
            pytest.skip("there is no memory behind this port's addresses")
        test(**fixtures)

    return checked


def call(stream: Stream, function: Callable[[], object]) -> None:
    """Queue a call; needs `Launches`."""
    queue = stream.queue
    assert isinstance(queue, Launches)
    queue.call(function)


def neighbour(device: Device) -> Device:
    """Another device of the kind; without one the test is skipped."""
    count = forebay.device_count(device.kind)
    if count < 2:
        pytest.skip(f"there is no other device of kind {device.kind}")
    return Device(device.kind, ((device.index or 0) + 1) % count)


class Scratch:
    """Memory of the port that holds `data`."""

    def __init__(self, port: Port, data: bytes) -> None:
        self.nbytes = len(data)
        self.address = port.reserve(self.nbytes)
        source = ctypes.create_string_buffer(data, self.nbytes)
        queue = port.queue()
        queue.copy(self.address, ctypes.addressof(source), self.nbytes)
        drain(queue)
        queue.close()


def read(queue: Queue, scratch: Scratch) -> bytes:
    """What the memory holds after all that the queue has to do."""
    target = ctypes.create_string_buffer(scratch.nbytes)
    queue.copy(ctypes.addressof(target), scratch.address, scratch.nbytes)
    drain(queue)
    return target.raw


def drain(queue: Queue) -> None:
    """Waits for all that is queued."""
    queue.wait(queue.signal())


class Gate:
    """Queued with `Launches.call`, it stops a queue until it is opened."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> None:
        assert self._event.wait(_LIMIT), "nobody opened the gate"

    def open(self) -> None:
        self._event.set()


class NativeGate:
    """The same for `Launches.call_native`: it stops a queue without any Python. It opens once, by the same thread."""

    def __init__(self) -> None:
        self._mutex = ctypes.create_string_buffer(256)  # more than a pthread_mutex_t on any system
        libc = ctypes.CDLL(None)
        assert libc.pthread_mutex_init(self._mutex, None) == 0
        assert libc.pthread_mutex_lock(self._mutex) == 0
        self._unlock = libc.pthread_mutex_unlock
        self.function = native("pthread_mutex_lock")
        self.argument = ctypes.addressof(self._mutex)

    def open(self) -> None:
        assert self._unlock(self._mutex) == 0


def native(name: str) -> int:
    """The address of a function of the C library."""
    address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    assert address
    return address


def in_child(check: Callable[[], None]) -> str:
    """What goes wrong with `check` in a forked child: its traceback, or nothing. A child that hangs is killed."""
    out, into = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LIMIT)
        try:
            check()
        except BaseException:  # noqa: BLE001 - the parent is told, whatever it is
            os.write(into, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    return told or (f"it hung, and was killed by signal {status}" if status else "")


def in_new_process(device: Device, program: str) -> str:
    """What the program prints, which finds `forebay`, and the device's name as `name`. It says nothing else."""
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
