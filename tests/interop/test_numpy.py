"""NumPy's arrays in a device's memory: what is served and what is not, and that an array never notices."""

from __future__ import annotations

import contextvars
import ctypes
import gc
import io
import pickle
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import forebay
from forebay import memory
from forebay._core import NumpyHook, Pool
from forebay.errors import WrongState
from forebay.interop import numpy as hook
from forebay.runtime.devices.current import opened_for

HOST = "host:0"
KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(autouse=True)
def _nothing_is_left():
    gc.collect()
    before = allocated()
    yield
    hook.uninstall()
    gc.collect()
    assert allocated() == before
    assert opened_for(HOST).allocator.broken() is None


@pytest.fixture
def everywhere():
    hook.install(HOST)


@pytest.fixture
def every_array():
    hook.install(HOST, smallest=1)


def allocated():
    return memory.memory_allocated(HOST)


def dirty(nbytes):
    """Leaves free memory behind that is not zero."""
    np.full(nbytes, 255, np.uint8)


# What is served


def test_arrays_from_the_smallest_size_on_are_the_devices(everywhere):
    before = allocated()
    small, large = np.ones(hook.SMALLEST - 1, np.uint8), np.ones(hook.SMALLEST, np.uint8)
    assert allocated() - before == large.nbytes
    del small, large


def test_uninstalling_leaves_living_arrays_where_they_are(everywhere):
    before = allocated()
    array = np.arange(MIB)
    hook.uninstall()
    after = np.ones(8 * MIB, np.uint8)
    assert allocated() - before == array.nbytes
    assert (array[5], after[5]) == (5, 1)


def test_installing_again_with_another_size_needs_an_uninstall_and_adds_no_layer():
    for smallest in (1, 1000, 1, MIB):
        hook.install(HOST, smallest=smallest)
        hook.install(HOST, smallest=smallest)
        with pytest.raises(WrongState, match="uninstall"):
            hook.install(HOST, smallest=smallest + 1)
        hook.uninstall()
    assert len(hook._standing) == 1


@pytest.mark.parametrize("smallest", [0, -1])
def test_a_smallest_size_that_is_none(smallest):
    with pytest.raises(ValueError, match="at least 1"):
        hook.install(HOST, smallest=smallest)
    with pytest.raises(ValueError, match="at least 1"), hook.serving(HOST, smallest=smallest):
        pass


def test_installed_says_who_serves(everywhere):
    assert str(hook.installed()) == HOST
    hook.uninstall()
    assert hook.installed() is None


def test_a_context_ends_but_its_arrays_do_not():
    before = allocated()
    with hook.serving(HOST):
        array = np.arange(MIB)
    outside = np.arange(MIB)
    assert allocated() - before == array.nbytes
    array.resize(2 * MIB, refcheck=False)  # still the handler that made it
    gc.collect()
    assert allocated() - before == array.nbytes == 16 * MIB
    assert (array[:MIB] == outside).all()
    assert not array[MIB:].any()


def test_contexts_nest_and_are_one_threads_own():
    before = allocated()
    with hook.serving(HOST), hook.serving(HOST, smallest=1000):
        array = np.ones(2000, np.uint8)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(np.ones, MIB).result()
        copied = contextvars.copy_context()
    assert allocated() - before == 2048
    late = copied.run(np.ones, MIB)  # a task begun inside is served after it
    assert allocated() - before == 2048 + late.nbytes
    del array, other


def test_numpy_knows_the_handler_of_a_context_by_name(everywhere):
    name = np._core.multiarray.get_handler_name
    assert name(np.ones(MIB)) == "default_allocator"  # `install` changes its functions only
    with hook.serving(HOST):
        assert name(np.ones(MIB)) == "forebay"


def test_a_hook_stands_in_one_place():
    made = NumpyHook(Pool(), 0, 1)
    before = contextvars.copy_context().run(made.in_context)
    with pytest.raises(ValueError, match="make another"):
        made.everywhere()
    del before


# Growing and shrinking


def test_an_array_from_before_becomes_the_devices_when_it_grows():
    array = np.arange(1000)
    hook.install(HOST)
    before = allocated()
    array.resize(MIB, refcheck=False)  # 8 MiB: its maker grows it where it lies
    assert allocated() == before
    array.resize(5 * MIB, refcheck=False)
    assert allocated() - before == array.nbytes
    assert (array[:1000] == np.arange(1000)).all()
    assert not array[1000:].any()


def test_an_array_from_before_may_shrink(everywhere):
    hook.uninstall()
    array = np.arange(MIB)
    hook.install(HOST)
    array.resize(MIB // 2, refcheck=False)
    array.resize(10, refcheck=False)
    assert array.tolist() == list(range(10))


def test_an_array_of_the_device_grows_elsewhere_after_the_end(everywhere):
    array = np.arange(MIB)
    hook.uninstall()
    array.resize(2 * MIB, refcheck=False)
    assert (array[:MIB] == np.arange(MIB)).all()
    assert not array[MIB:].any()


def test_shrinking_gives_back(everywhere):
    before = allocated()
    array = np.arange(MIB)
    array.resize(hook.SMALLEST // 8, refcheck=False)
    assert allocated() - before == hook.SMALLEST
    array.resize(3, refcheck=False)
    assert array.tolist() == [0, 1, 2]


@pytest.mark.parametrize("smallest", [1, 1000, 64 * KIB])
def test_growing_step_by_step_changes_nothing(smallest):
    hook.install(HOST, smallest=smallest)
    array, length = np.zeros(1, np.int64), 1
    while length < MIB:
        array[-1] = length
        length = length * 3 // 2 + 1
        array.resize(length, refcheck=False)
        assert array[-1] == 0
    marks = array[np.flatnonzero(array)]
    assert (np.flatnonzero(array) + 1 == marks).all()


# Zeros


@pytest.mark.parametrize("nbytes", [hook.SMALLEST, MIB + 3, 5 * MIB, 31 * MIB + 7, 33 * MIB + 5, 64 * MIB])
def test_zeros_are_zero_on_used_memory(everywhere, nbytes):
    for _ in range(3):
        dirty(nbytes + MIB)
        array = np.zeros(nbytes, np.uint8)
        assert not array.any()
        array[:] = 7
        del array


def test_zeros_beside_a_neighbour_leave_it_alone(every_array):
    dirty(80 * MIB)
    pieces = [np.full(1000 + 37 * n, n + 1, np.uint8) for n in range(40)]
    large = np.zeros(40 * MIB + 13, np.uint8)
    after = [np.full(1000 + 37 * n, n + 1, np.uint8) for n in range(40)]
    assert not large.any()
    assert all((piece == n % 40 + 1).all() for n, piece in enumerate(pieces + after))


def test_memory_that_is_not_the_processs_own_is_cleared_by_hand():
    """As a vendor's may be: its first pages are not zero, and advice does not make them so."""
    block = opened_for(HOST).allocator.allocate(64 * MIB)
    ctypes.memset(block.address, 255, block.nbytes)
    pool = Pool()
    pool.adopt(block.address, block.nbytes, 0, small=False)

    def inside():
        NumpyHook(pool, 0, 2 * MIB).in_context()
        for nbytes in (40 * MIB, 2 * MIB):
            array = np.zeros(nbytes, np.uint8)
            assert array.__array_interface__["data"][0] == block.address
            assert not array.any()
            del array

    contextvars.copy_context().run(inside)


# Programs


def test_sixteen_threads(everywhere):
    stop = threading.Barrier(16)

    def hammer(seed):
        chance = np.random.default_rng(seed)
        stop.wait()
        for _ in range(15):
            arrays = [np.full(int(size), seed, np.uint8) for size in chance.integers(1, 2 * MIB, 8)]
            arrays[0].resize(arrays[0].size * 2, refcheck=False)
            arrays.append(np.zeros(3 * MIB, np.uint8))
            assert not arrays.pop().any()
            assert (arrays[0][: arrays[0].size // 2] == seed).all()
            assert all((array == seed).all() for array in arrays[1:])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(hammer, range(16)))


def test_everyday_numpy(tmp_path):
    everyday(tmp_path)  # once before: what NumPy imports late keeps arrays of its own
    hook.install(HOST, smallest=1)
    everyday(tmp_path)


def everyday(tmp_path):
    chance = np.random.default_rng(0)
    a = chance.random((300, 200))
    records = np.zeros(1000, [("name", "U8"), ("value", "f8"), ("any", "O")])
    records["any"] = [[n] for n in range(1000)]
    assert (np.sort(a, axis=None)[1:] >= np.sort(a, axis=None)[:-1]).all()
    assert np.allclose(np.linalg.inv(a.T @ a) @ (a.T @ a), np.eye(200))
    assert np.fromiter(range(100_000), np.int64).sum() == 4_999_950_000
    assert np.loadtxt(io.StringIO("1 2\n" * 2000)).shape == (2000, 2)
    assert np.ma.masked_greater(a, 0.5).count() == (a <= 0.5).sum()
    assert np.frombuffer(a.tobytes()).sum() == a.sum(axis=None)
    assert np.concatenate([np.empty((0, 3)), np.ones((2, 3))]).shape == (2, 3)
    assert pickle.loads(pickle.dumps(records, 5))["any"][7] == [7]
    assert np.array([[n] for n in range(999)], object)[5] == [5]
    np.save(tmp_path / "a.npy", a)
    assert (np.load(tmp_path / "a.npy") == np.load(tmp_path / "a.npy", mmap_mode="r")).all()
    assert np.unique(np.repeat(np.arange(1000), 100)).size == 1000
    assert np.array(["x" * 300] * 50).astype(np.dtypes.StringDType())[49] == "x" * 300


def test_tracemalloc_sees_the_arrays(everywhere):
    tracemalloc.start()
    try:
        array = np.ones(8 * MIB, np.uint8)
        traced, _ = tracemalloc.get_traced_memory()
        assert traced >= array.nbytes == 8 * MIB
        array.resize(16 * MIB, refcheck=False)
        assert tracemalloc.get_traced_memory()[0] >= array.nbytes
        del array
        assert tracemalloc.get_traced_memory()[0] < 8 * MIB
    finally:
        tracemalloc.stop()


def test_the_history_says_who_made_an_array(everywhere):
    memory.record_history(device=HOST)
    try:
        array = np.ones(8 * MIB, np.uint8)
        shot = memory.snapshot(HOST)
    finally:
        memory.record_history(None, device=HOST)
    mine = shot.blocks[shot.blocks["address"] == array.__array_interface__["data"][0]]
    frames = list(shot.stack(int(mine["stack"][0])))
    assert test_the_history_says_who_made_an_array.__name__ in {frame.name for frame in frames}


def test_memory_that_queued_work_still_writes_is_not_numpys():
    """What a stream gave back is free in its order only; NumPy waits for no stream."""
    hook.install(HOST)
    tensor = forebay.full((16 * MIB,), 7, dtype=forebay.uint8, device=HOST)
    del tensor  # the fill may not even have begun
    array = np.zeros(16 * MIB, np.uint8)
    forebay.synchronize(HOST)
    assert not array.any()
