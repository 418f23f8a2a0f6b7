"""NumPy arrays in a device's memory: which arrays use it, growing, zeros, and typical programs."""

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
from numpy._core.multiarray import get_handler_name

import forebay
from forebay import memory
from forebay._core import NumpyHook, Pool
from forebay.errors import WrongState
from forebay.interop import numpy as hook
from forebay.runtime.devices.current import opened_for

HOST = "cpu"
KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(autouse=True)
def _no_memory_leaks():
    gc.collect()
    before = allocated()
    yield
    hook.uninstall()
    gc.collect()
    assert allocated() == before
    assert opened_for(HOST).allocator.check_invariants() is None


@pytest.fixture
def install():
    hook.install(HOST)


@pytest.fixture
def install_for_all_sizes():
    hook.install(HOST, smallest=1)


def allocated():
    return memory.memory_allocated(HOST)


def dirty(nbytes):
    """Leave nonzero free memory behind."""
    np.full(nbytes, 255, np.uint8)


# Arrays in device memory


def test_arrays_of_at_least_smallest_are_served(install):
    before = allocated()
    small, large = np.ones(hook.SMALLEST - 1, np.uint8), np.ones(hook.SMALLEST, np.uint8)
    assert allocated() - before == large.nbytes
    del small, large


def test_uninstall_keeps_existing_arrays(install):
    before = allocated()
    array = np.arange(MIB)
    hook.uninstall()
    after = np.ones(8 * MIB, np.uint8)
    assert allocated() - before == array.nbytes
    assert (array[5], after[5]) == (5, 1)


def test_install_with_another_size_requires_uninstall():
    for smallest in (1, 1000, 1, MIB):
        hook.install(HOST, smallest=smallest)
        hook.install(HOST, smallest=smallest)
        with pytest.raises(WrongState, match="uninstall"):
            hook.install(HOST, smallest=smallest + 1)
        hook.uninstall()
    assert len(hook._installed) == 1


@pytest.mark.parametrize("smallest", [0, -1])
def test_smallest_must_be_positive(smallest):
    with pytest.raises(ValueError, match="at least 1"):
        hook.install(HOST, smallest=smallest)
    with pytest.raises(ValueError, match="at least 1"), hook.serving(HOST, smallest=smallest):
        pass


def test_installed_returns_the_device(install):
    assert str(hook.installed()) == HOST
    hook.uninstall()
    assert hook.installed() is None


def test_arrays_outlive_their_context():
    before = allocated()
    with hook.serving(HOST):
        array = np.arange(MIB)
    outside = np.arange(MIB)
    assert allocated() - before == array.nbytes
    array.resize(2 * MIB, refcheck=False)  # uses the handler that allocated it
    gc.collect()
    assert allocated() - before == array.nbytes == 16 * MIB
    assert (array[:MIB] == outside).all()
    assert not array[MIB:].any()


def test_contexts_nest_and_are_thread_local():
    before = allocated()
    with hook.serving(HOST), hook.serving(HOST, smallest=1000):
        array = np.ones(2000, np.uint8)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(np.ones, MIB).result()
        copied = contextvars.copy_context()
    assert allocated() - before == 2048
    late = copied.run(np.ones, MIB)  # a task that copied the context uses the device later, too
    assert allocated() - before == 2048 + late.nbytes
    del array, other


def test_handler_name_of_served_array(install):
    name = np._core.multiarray.get_handler_name
    assert name(np.ones(MIB)) == "default_allocator"  # `install` changes its functions only
    with hook.serving(HOST):
        assert name(np.ones(MIB)) == "forebay"


def test_hook_can_be_installed_once():
    numpy_hook = NumpyHook(Pool(), 0, 1)
    previous = contextvars.copy_context().run(numpy_hook.in_context)
    with pytest.raises(ValueError, match="create another"):
        numpy_hook.everywhere()
    del previous


# Growing and shrinking


def test_growing_array_moves_to_the_device_when_large():
    array = np.arange(1000)
    hook.install(HOST)
    before = allocated()
    array.resize(MIB, refcheck=False)  # 8 MiB: the previous allocator grows it
    assert allocated() == before
    array.resize(5 * MIB, refcheck=False)
    assert allocated() - before == array.nbytes
    assert (array[:1000] == np.arange(1000)).all()
    assert not array[1000:].any()


def test_foreign_array_may_shrink(install):
    hook.uninstall()
    array = np.arange(MIB)
    hook.install(HOST)
    array.resize(MIB // 2, refcheck=False)
    array.resize(10, refcheck=False)
    assert array.tolist() == list(range(10))


def test_served_array_grows_outside_the_device_after_uninstall(install):
    array = np.arange(MIB)
    hook.uninstall()
    array.resize(2 * MIB, refcheck=False)
    assert (array[:MIB] == np.arange(MIB)).all()
    assert not array[MIB:].any()


def test_shrinking_frees_device_memory(install):
    before = allocated()
    array = np.arange(MIB)
    array.resize(hook.SMALLEST // 8, refcheck=False)
    assert allocated() - before == hook.SMALLEST
    array.resize(3, refcheck=False)
    assert array.tolist() == [0, 1, 2]


@pytest.mark.parametrize("smallest", [1, 1000, 64 * KIB])
def test_growing_in_steps_keeps_contents(smallest):
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


@pytest.mark.slow
@pytest.mark.parametrize("nbytes", [hook.SMALLEST, MIB + 3, 5 * MIB, 31 * MIB + 7, 33 * MIB + 5, 64 * MIB])
def test_zeros_on_reused_memory(install, nbytes):
    for _ in range(3):
        dirty(nbytes + MIB)
        array = np.zeros(nbytes, np.uint8)
        assert not array.any()
        array[:] = 7
        del array


def test_zeroing_does_not_change_neighbouring_arrays(install_for_all_sizes):
    dirty(80 * MIB)
    pieces = [np.full(1000 + 37 * n, n + 1, np.uint8) for n in range(40)]
    large = np.zeros(40 * MIB + 13, np.uint8)
    after = [np.full(1000 + 37 * n, n + 1, np.uint8) for n in range(40)]
    assert not large.any()
    assert all((piece == n % 40 + 1).all() for n, piece in enumerate(pieces + after))


def test_nonzero_pages_are_cleared_explicitly():
    """A vendor's memory may be nonzero at first, and madvise() may not zero it."""
    block = opened_for(HOST).allocator.allocate(64 * MIB)
    ctypes.memset(block.address, 255, block.nbytes)
    pool = Pool()
    pool.adopt(block.address, block.nbytes, 0, small=False)

    def allocate_zeros():
        NumpyHook(pool, 0, 2 * MIB).in_context()
        for nbytes in (40 * MIB, 2 * MIB):
            array = np.zeros(nbytes, np.uint8)
            assert array.__array_interface__["data"][0] == block.address
            assert not array.any()
            del array

    contextvars.copy_context().run(allocate_zeros)


# Programs


@pytest.mark.slow
def test_arrays_of_concurrent_threads(install):
    start = threading.Barrier(16)

    def allocate_arrays(seed):
        chance = np.random.default_rng(seed)
        start.wait()
        for _ in range(15):
            arrays = [np.full(int(size), seed, np.uint8) for size in chance.integers(1, 2 * MIB, 8)]
            arrays[0].resize(arrays[0].size * 2, refcheck=False)
            arrays.append(np.zeros(3 * MIB, np.uint8))
            assert not arrays.pop().any()
            assert (arrays[0][: arrays[0].size // 2] == seed).all()
            assert all((array == seed).all() for array in arrays[1:])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(allocate_arrays, range(16)))


def test_typical_numpy_functions(tmp_path):
    run_numpy_functions(tmp_path)  # once before, as modules that NumPy imports late keep arrays
    hook.install(HOST, smallest=1)
    run_numpy_functions(tmp_path)


def run_numpy_functions(tmp_path):
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


def test_tracemalloc_traces_served_arrays(install):
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


def test_history_has_the_stack_of_an_array(install):
    memory.record_history(device=HOST)
    try:
        array = np.ones(8 * MIB, np.uint8)
        shot = memory.snapshot(HOST)
    finally:
        memory.record_history(None, device=HOST)
    own = shot.blocks[shot.blocks["address"] == array.__array_interface__["data"][0]]
    frames = list(shot.stack(int(own["stack"][0])))
    assert test_history_has_the_stack_of_an_array.__name__ in {frame.name for frame in frames}


def test_memory_freed_on_a_stream_is_not_reused():
    """Memory freed on a stream may be reused in that stream's order only, and NumPy does not wait for streams."""
    hook.install(HOST)
    tensor = forebay.full((16 * MIB,), 7, dtype=forebay.uint8, device=HOST)
    del tensor  # the fill may not even have begun
    array = np.zeros(16 * MIB, np.uint8)
    forebay.synchronize(HOST)
    assert not array.any()


def test_contexts_may_end_in_any_order():
    before = get_handler_name(np.empty(1))
    first, second, third = (hook.serving(HOST, smallest=1) for _ in range(3))
    for each in (first, second, third):
        each.__enter__()
    for each in (second, first, third):
        assert get_handler_name(np.empty(1)) != before
        each.__exit__(None, None, None)
    assert get_handler_name(np.empty(1)) == before


def test_context_may_end_in_another_one():
    """A generator is resumed in the context of its caller. The next block that ends here restores NumPy's handler."""
    before, entered = get_handler_name(np.empty(1)), hook.serving(HOST, smallest=1)
    entered.__enter__()
    contextvars.Context().run(entered.__exit__, None, None, None)
    with hook.serving(HOST, smallest=1):
        pass
    assert get_handler_name(np.empty(1)) == before
