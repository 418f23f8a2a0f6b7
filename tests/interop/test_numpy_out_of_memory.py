"""Failed NumPy allocations, and exceptions and allocations during a refill."""

from __future__ import annotations

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from forebay import memory
from forebay.errors import OutOfMemory
from forebay.interop import numpy as hook
from forebay.runtime.devices.current import opened_for

HOST = "cpu"
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _no_memory_leaks():
    gc.collect()
    before = memory.memory_allocated(HOST)
    yield
    hook.uninstall()
    gc.collect()
    assert memory.memory_allocated(HOST) == before
    assert opened_for(HOST).allocator.check_invariants() is None


@pytest.fixture
def install():
    hook.install(HOST)


@pytest.fixture
def full():
    """Limit the device's capacity to 42 MiB more than its used memory."""
    port = opened_for(HOST).port
    memory.empty_cache(HOST)
    free, total = memory.mem_get_info(HOST)
    memory.set_capacity(total - free + 42 * MIB, HOST)
    yield
    gc.collect()
    memory.empty_cache(HOST)
    port.set_capacity(total)


def test_out_of_memory_error_describes_the_array(install, full):
    with pytest.raises(OutOfMemory) as caught:
        np.ones((3, 8 * MIB))
    error = caught.value
    assert isinstance(error, MemoryError)
    assert isinstance(error, hook.ArrayOutOfMemory)
    assert isinstance(error, np._core._exceptions._ArrayMemoryError)
    assert (error.wanted, error.shape, error.dtype) == (3 * 64 * MIB, (3, 8 * MIB), np.dtype(float))
    assert "shape (3, 8388608) and dtype float64" in str(error)
    assert error.__context__ is None


def test_error_can_be_pickled(install, full):
    with pytest.raises(OutOfMemory) as caught:
        np.zeros(64 * MIB, "U1")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is hook.ArrayOutOfMemory
    assert str(again) == str(caught.value)
    assert (again.wanted, again.capacity, again.shape) == (256 * MIB, caught.value.capacity, (64 * MIB,))


def test_failed_resize_keeps_the_array(install, full):
    array = np.arange(MIB)
    with pytest.raises(MemoryError):
        array.resize(8 * MIB, refcheck=False)
    assert (array == np.arange(MIB)).all()
    outside = np.arange(10)
    with pytest.raises(MemoryError):
        outside.resize(8 * MIB, refcheck=False)
    assert outside.tolist() == list(range(10))


def test_shrinking_always_succeeds(install, full):
    held = [np.ones(MIB + 512, np.uint8) for _ in range(2)]
    array = np.arange(20 * MIB // 8)  # with `held`, all of the device's memory
    array.resize(18 * MIB // 8, refcheck=False)
    hook.uninstall()
    assert (array == np.arange(18 * MIB // 8)).all()
    del held


def test_failed_request_is_reported_once_on_its_own_thread(install, full):
    array = np.ones(10)
    with pytest.raises(MemoryError, match="cannot allocate"):
        array.resize(64 * MIB, refcheck=False)  # NumPy raises a plain MemoryError, which leaves the failure unread
    error_class = np._core._exceptions._ArrayMemoryError
    arguments = ((64 * MIB,), np.dtype(float))
    with ThreadPoolExecutor(1) as pool:
        assert type(pool.submit(error_class, *arguments).result()) is error_class
    assert type(error_class((1,), np.dtype(float))) is error_class  # another array's
    assert type(error_class(*arguments)) is hook.ArrayOutOfMemory
    assert type(error_class(*arguments)) is error_class


def test_excessive_sizes_raise_numpy_errors(install):
    for elements in (1 << 60, (1 << 63) - 1):
        with pytest.raises(MemoryError, match="Unable to allocate"):
            np.empty(elements, np.uint8)
    with pytest.raises(ValueError, match="too big"):
        np.zeros((1 << 40, 1 << 40))


# Exceptions and allocations during a refill


class Interrupted(Exception):
    """Raised by a signal handler."""


@pytest.fixture
def during_reserve(monkeypatch):
    """Return a function that makes the port call an action during `reserve`."""
    memory.empty_cache(HOST)
    port = opened_for(HOST).port

    def install_action(action):
        reserve = type(port).reserve
        monkeypatch.setattr(port, "reserve", lambda nbytes: (action(), reserve(port, nbytes))[1])

    return install_action


def interrupt():
    raise Interrupted


def test_exception_of_signal_handler_is_raised_after_the_allocation(install, during_reserve):
    during_reserve(interrupt)
    with pytest.raises(Interrupted):  # noqa: PT012 - raised at the next bytecode check, not in the call
        np.ones(30 * MIB)
        for _ in range(3):
            pass


def test_exception_in_another_thread_is_unraisable(install, during_reserve, monkeypatch):
    reported = []
    monkeypatch.setattr("sys.unraisablehook", lambda report: reported.append(report.exc_value))
    during_reserve(interrupt)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(np.ones, 30 * MIB).result().nbytes == 240 * MIB
    assert [type(error) for error in reported] == [Interrupted]


def test_arrays_created_during_refill_are_not_served(during_reserve):
    hook.install(HOST, smallest=1)
    created = []
    during_reserve(lambda: created.append(np.ones(100)))
    array = np.ones(30 * MIB)
    hook.uninstall()
    assert created[0].sum() == 100
    del array


def test_allocation_at_recursion_limit_uses_previous_allocator(install):
    def deep():
        try:
            return deep()
        except RecursionError:
            return np.ones(30 * MIB, np.uint8)

    assert deep().all()


def test_propagating_error_is_not_replaced(install):
    class AllocatesInDel:
        def __del__(self):
            self.last = np.ones(24 * MIB)

    def raise_with_victim():
        _victim = AllocatesInDel()
        memory.empty_cache(HOST)
        raise KeyError("kept")

    with pytest.raises(KeyError, match="kept"):
        raise_with_victim()
