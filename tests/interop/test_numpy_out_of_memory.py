"""NumPy's arrays when the device says no, and what happens while it is asked for more."""

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

HOST = "host:0"
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _nothing_is_left():
    gc.collect()
    before = memory.memory_allocated(HOST)
    yield
    hook.uninstall()
    gc.collect()
    assert memory.memory_allocated(HOST) == before
    assert opened_for(HOST).allocator.broken() is None


@pytest.fixture
def everywhere():
    hook.install(HOST)


@pytest.fixture
def full():
    """A device that can take no more than it holds."""
    port = opened_for(HOST).port
    memory.empty_cache(HOST)
    free, total = memory.mem_get_info(HOST)
    memory.set_capacity(total - free + 42 * MIB, HOST)
    yield
    gc.collect()
    memory.empty_cache(HOST)
    port.set_capacity(total)


def test_a_full_device_says_which_array_it_has_no_room_for(everywhere, full):
    with pytest.raises(OutOfMemory) as caught:
        np.ones((3, 8 * MIB))
    error = caught.value
    assert isinstance(error, MemoryError)
    assert isinstance(error, hook.ArrayOutOfMemory)
    assert isinstance(error, np._core._exceptions._ArrayMemoryError)
    assert (error.wanted, error.shape, error.dtype) == (3 * 64 * MIB, (3, 8 * MIB), np.dtype(float))
    assert "shape (3, 8388608) and dtype float64" in str(error)
    assert error.__context__ is None


def test_the_error_pickles_and_copies(everywhere, full):
    with pytest.raises(OutOfMemory) as caught:
        np.zeros(64 * MIB, "U1")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is hook.ArrayOutOfMemory
    assert str(again) == str(caught.value)
    assert (again.wanted, again.capacity, again.shape) == (256 * MIB, caught.value.capacity, (64 * MIB,))


def test_the_array_that_could_not_grow_is_kept(everywhere, full):
    array = np.arange(MIB)
    with pytest.raises(MemoryError):
        array.resize(8 * MIB, refcheck=False)
    assert (array == np.arange(MIB)).all()
    outside = np.arange(10)
    with pytest.raises(MemoryError):
        outside.resize(8 * MIB, refcheck=False)
    assert outside.tolist() == list(range(10))


def test_to_shrink_is_never_refused(everywhere, full):
    held = [np.ones(MIB + 512, np.uint8) for _ in range(2)]
    array = np.arange(20 * MIB // 8)  # with `held`, all that the device has
    array.resize(18 * MIB // 8, refcheck=False)
    hook.uninstall()
    assert (array == np.arange(18 * MIB // 8)).all()
    del held


def test_a_refusal_is_told_once_and_to_its_own_thread_only(everywhere, full):
    array = np.ones(10)
    with pytest.raises(MemoryError, match="cannot allocate"):
        array.resize(64 * MIB, refcheck=False)  # NumPy says only that, so the refusal is not asked for
    made = np._core._exceptions._ArrayMemoryError
    wanted = ((64 * MIB,), np.dtype(float))
    with ThreadPoolExecutor(1) as pool:
        assert type(pool.submit(made, *wanted).result()) is made
    assert type(made((1,), np.dtype(float))) is made  # another array's
    assert type(made(*wanted)) is hook.ArrayOutOfMemory
    assert type(made(*wanted)) is made


def test_what_nobody_has_is_numpys_own_error(everywhere):
    for elements in (1 << 60, (1 << 63) - 1):
        with pytest.raises(MemoryError, match="Unable to allocate"):
            np.empty(elements, np.uint8)
    with pytest.raises(ValueError, match="too big"):
        np.zeros((1 << 40, 1 << 40))


# What happens while the device is asked for more


class Interrupted(Exception):
    """What a signal's handler raises."""


@pytest.fixture
def reserving(monkeypatch):
    """Runs something of ours in the midst of growing."""
    memory.empty_cache(HOST)
    port = opened_for(HOST).port

    def put(action):
        true = type(port).reserve
        monkeypatch.setattr(port, "reserve", lambda nbytes: (action(), true(port, nbytes))[1])

    return put


def refuse():
    raise Interrupted


def test_what_a_signal_raises_meanwhile_is_raised_when_the_array_is_there(everywhere, reserving):
    reserving(refuse)
    with pytest.raises(Interrupted):  # noqa: PT012 - it comes at the next moment Python has, not in the call
        np.ones(30 * MIB)
        for _ in range(3):
            pass


def test_in_another_thread_it_is_reported(everywhere, reserving, monkeypatch):
    reported = []
    monkeypatch.setattr("sys.unraisablehook", lambda report: reported.append(report.exc_value))
    reserving(refuse)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(np.ones, 30 * MIB).result().nbytes == 240 * MIB
    assert [type(error) for error in reported] == [Interrupted]


def test_arrays_made_while_growing_are_not_served(reserving):
    hook.install(HOST, smallest=1)
    made = []
    reserving(lambda: made.append(np.ones(100)))
    array = np.ones(30 * MIB)
    hook.uninstall()
    assert made[0].sum() == 100
    del array


def test_a_program_out_of_stack_is_served_from_below(everywhere):
    def deep():
        try:
            return deep()
        except RecursionError:
            return np.ones(30 * MIB, np.uint8)

    assert deep().all()


def test_an_error_on_its_way_out_survives_what_its_victims_allocate(everywhere):
    class Victim:
        def __del__(self):
            self.last = np.ones(24 * MIB)

    def fails():
        _victim = Victim()
        memory.empty_cache(HOST)
        raise KeyError("kept")

    with pytest.raises(KeyError, match="kept"):
        fails()
