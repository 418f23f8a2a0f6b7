"""The thread that returns idle memory: its start, its passes, its end, forks and exit."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

import forebay
from forebay.errors import DeviceError, ForebayWarning
from forebay.runtime.devices import idle_release
from forebay.runtime.devices.idle_release import IdleRelease
from forebay.testing.conformance.helpers import run_in_child

LIMIT = 20.0  # seconds


class FakeMemory:
    """Idle memory that counts passes. `error` is raised by each pass; `exceeds` are the answers to `exceeds_kept`."""

    def __init__(self, *exceeds: bool, error: Exception | None = None) -> None:
        self.passes = 0
        self.passed = threading.Event()
        self.error = error
        self._exceeds = [*exceeds]

    def release_unused(self) -> None:
        self.passes += 1
        self.passed.set()
        if self.error is not None:
            raise self.error

    def exceeds_kept(self) -> bool:
        return self._exceeds.pop(0) if len(self._exceeds) > 1 else self._exceeds[0]


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(idle_release, "SECONDS", 0.01)


def wait_for_end(release: IdleRelease, thread: threading.Thread) -> None:
    thread.join(LIMIT)
    assert not thread.is_alive()


def test_object_of_the_last_thread_is_dropped_while_signals_are_blocked():
    """A callback of Python's set of all threads runs then, which would swallow the exception of a signal handler."""
    blocked = []

    class Ended:
        ident = 1

        def __del__(self):
            blocked.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    memory = FakeMemory(False)
    release = IdleRelease(memory)
    release._thread = Ended()
    release.start()
    assert blocked == [True]
    assert memory.passed.wait(LIMIT)
    release.stop()


def test_interrupted_start_can_be_repeated(monkeypatch):
    @contextmanager
    def interrupted():
        raise KeyboardInterrupt
        yield

    memory = FakeMemory(False)
    release = IdleRelease(memory)
    with monkeypatch.context() as planted:
        planted.setattr(idle_release, "signals_blocked", interrupted)
        with pytest.raises(KeyboardInterrupt):
            release.start()
    release.start()
    assert memory.passed.wait(LIMIT)
    release.stop()


def test_thread_passes_until_it_is_stopped():
    memory = FakeMemory(True)
    release = IdleRelease(memory)
    release.start()
    thread = release._thread
    release.start()
    assert release._thread is thread
    for _ in range(3):
        memory.passed.clear()
        assert memory.passed.wait(LIMIT)
    release.stop()
    wait_for_end(release, thread)


def test_concurrent_starts_make_one_thread():
    memory = FakeMemory(True)
    release = IdleRelease(memory)
    before = release_threads()
    barrier = threading.Barrier(8)

    def start() -> None:
        barrier.wait(LIMIT)
        release.start()

    callers = [threading.Thread(target=start) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(LIMIT)
    [thread] = release_threads() - before
    release.stop()
    wait_for_end(release, thread)


def release_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "forebay-idle-memory"}


def test_stopped_release_does_not_start_again():
    release = IdleRelease(FakeMemory(True))
    release.stop()
    release.start()
    assert release._thread is None


def test_child_of_a_process_with_the_thread_can_stop_and_start():
    memory = FakeMemory(True)
    release = IdleRelease(memory)
    release.start()
    release._stopped._cond.acquire()  # as the thread may hold it at the fork

    def check() -> None:
        release.after_fork_in_child()
        release.start()
        memory.passed.clear()
        assert memory.passed.wait(LIMIT / 2)
        release.stop()

    try:
        assert run_in_child(check) == ""
    finally:
        release._stopped._cond.release()
        release.stop()


def test_thread_ends_when_little_memory_is_left_and_can_start_again():
    memory = FakeMemory(False)
    release = IdleRelease(memory)
    for _ in range(2):
        release.start()
        wait_for_end(release, release._thread)
    assert memory.passes == 2


def test_reservation_during_the_end_is_not_missed():
    memory = FakeMemory(False, True, True)
    release = IdleRelease(memory)
    release.start()
    for _ in range(3):
        memory.passed.clear()
        assert memory.passed.wait(LIMIT)
    release.stop()


def test_thread_ends_with_its_allocator():
    memory = FakeMemory(True)
    release = IdleRelease(memory)
    release.start()
    thread = release._thread
    del memory
    wait_for_end(release, thread)


def test_memory_that_cannot_be_released_is_reported_once():
    memory = FakeMemory(True, error=DeviceError("no more mappings", code=12, call="munmap", device="cpu"))
    release = IdleRelease(memory)

    def run() -> None:
        release.start()
        wait_for_end(release, release._thread)

    with pytest.warns(ForebayWarning, match="idle memory could not be returned: .*no more mappings"):
        run()
    assert memory.passes == 1


def test_device_without_threads_left_returns_no_memory_by_itself(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    release = IdleRelease(FakeMemory(True))
    release.start()
    release.stop()
    monkeypatch.undo()
    assert release._exists.acquire(blocking=False)


def test_memory_of_the_cpu_device_is_returned_and_again_in_a_child():
    def check() -> None:
        tensor = forebay.empty(100 << 20, dtype=forebay.uint8)
        peak = forebay.memory.memory_reserved("cpu")
        del tensor
        end = time.monotonic() + LIMIT
        while forebay.memory.memory_reserved("cpu") > peak - (100 << 20):
            assert time.monotonic() < end, "the memory was not returned"
            threading.Event().wait(0.01)

    check()
    assert run_in_child(check) == ""


def test_program_that_ends_beside_the_thread_exits_normally():
    program = """
import numpy as np
from forebay.interop import numpy
from forebay.runtime.devices import idle_release
idle_release.SECONDS = 0.0001
numpy.install("cpu")
arrays = [np.ones(1 << 20) for _ in range(20)]
for _ in range(50):
    del arrays[::2]
    arrays += [np.ones(1 << 20) for _ in range(5)]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
