"""Allocators that a user brings as a shared library: for all of CUDA, or for one MemPool."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import threading
import weakref
from pathlib import Path

import pytest

import forebay
from forebay import ForebayError, WrongState, cuda
from forebay.cuda import memory

COMPILER = shutil.which(os.environ.get("CXX", "g++"))
pytestmark = [
    pytest.mark.usefixtures("clean"),
    pytest.mark.skipif(COMPILER is None, reason="the compiler that builds the core is not there"),
]
MIB = 1 << 20


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugged") / "allocator.so"
    source = Path(__file__).with_name("pluggable_allocator.cpp")
    command = [COMPILER, "-std=c++17", "-shared", "-fPIC", "-o", path, source]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture
def told(library):
    """What the library was told since the test began."""
    loaded = ctypes.CDLL(library)
    loaded.forget()

    def read(name, kind=ctypes.c_ssize_t):
        return kind.in_dll(loaded, name).value

    read.address = lambda name: ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value
    return read


@pytest.fixture
def allocator(library):
    return memory.CUDAPluggableAllocator(str(library), "take", "give")


class TestLoading:
    def test_no_library(self):
        with pytest.raises(OSError, match="cannot open shared object file"):
            memory.CUDAPluggableAllocator("/nowhere.so", "take", "give")

    def test_no_such_function(self, library):
        with pytest.raises(AttributeError, match="undefined symbol: grab"):
            memory.CUDAPluggableAllocator(str(library), "grab", "give")

    def test_it_is_one_of_the_allocators(self, allocator):
        assert isinstance(allocator, memory._CUDAAllocator)
        assert repr(allocator.allocator()).startswith("take of ")


@pytest.mark.usefixtures("emulated")
class TestForAllOfCuda:
    @pytest.fixture(autouse=True)
    def plugged(self, allocator, emulated):
        memory.change_current_allocator(allocator)
        return allocator.allocator()

    def test_it_serves(self, told, allocator):
        assert memory.get_allocator_backend() == "pluggable"
        assert memory._get_current_allocator().allocator() is allocator.allocator()
        with cuda.stream(cuda.Stream("cuda:1")) as _:
            tensor = forebay.full((1000,), 7, dtype="uint8", device="cuda:1")
            stream = cuda.current_stream().cuda_stream
        assert (told("taken"), told("held"), told("device_seen", ctypes.c_int)) == (1, 1000, 1)
        assert told("stream_seen", ctypes.c_void_p) == stream
        cuda.synchronize(1)
        assert tensor.tolist() == [7] * 1000
        del tensor
        cuda.synchronize(1)  # queued work keeps what it reads
        assert (told("given"), told("held")) == (1, 0)

    def test_memory_goes_back_after_the_work_on_it(self, told):
        gate, other = threading.Event(), cuda.Stream()
        held = [forebay.zeros(1000, device="cuda")]
        other.queue.call(gate.wait)
        freeing = threading.Thread(target=held.clear, daemon=True)
        freeing.start()
        assert told("given") == 0
        gate.set()
        freeing.join(60)
        assert told("given") == 1

    def test_by_address(self, told):
        address = memory.caching_allocator_alloc(1000)
        assert told("held") == 1000
        with pytest.raises(RuntimeError, match=r"^Trying to free a pointer not allocated here$"):
            memory.caching_allocator_delete(address + 8)
        memory.caching_allocator_delete(address)
        assert told("held") == 0

    def test_it_cannot_be_changed_again(self, allocator):
        native = memory._CUDAAllocator(None)
        for _ in range(2):
            for other in (allocator, native):
                with pytest.raises(WrongState, match=r"^Can't swap an already initialized allocator$"):
                    memory.change_current_allocator(other)
            cuda.init()

    @pytest.mark.parametrize(
        ("name", "call"),
        [
            ("memory_stats", "getDeviceStats"),
            ("memory_allocated", "getDeviceStats"),
            ("max_memory_reserved", "getDeviceStats"),
            ("memory_summary", "getDeviceStats"),
            ("reset_peak_memory_stats", "resetPeakStats"),
            ("reset_accumulated_memory_stats", "resetAccumulatedStats"),
            ("get_per_process_memory_fraction", "getMemoryFraction"),
            ("memory_snapshot", "snapshot"),
            ("_snapshot", "snapshot"),
            ("_record_memory_history", "recordHistory"),
        ],
    )
    def test_what_it_cannot_tell(self, name, call):
        cuda.init()
        words = f"^CUDAPluggableAllocator does not yet support {call}. If you need it, please file an issue describing"
        with pytest.raises(RuntimeError, match=words):
            getattr(memory, name)()

    def test_what_goes_on_without_it(self):
        assert memory.memory_stats() == {}  # nobody has used CUDA
        assert memory.mem_get_info() == (64 * MIB, 64 * MIB)
        assert not memory._memory_metadata_supported()
        memory._annotate_tensor(forebay.zeros(3, device="cuda"), "nobody hears it")
        assert memory._allocation_traceback(5) is None

    def test_it_has_no_pools(self):
        with pytest.raises(RuntimeError, match=r"^pluggable does not yet support createOrIncrefPool"):
            memory.MemPool()

    def test_no_memory(self, told):
        with pytest.raises(forebay.OutOfMemory, match=r"take of .* has no 65\.00 MiB"):
            forebay.empty(65 * MIB, dtype="uint8", device="cuda")
        assert told("taken") == 0

    def test_what_else_it_is_told(self, plugged, told):
        plugged.set_init_fn(told.address("told_devices"))
        plugged.set_reset_fn(told.address("told_reset"))
        plugged.set_memory_fraction_fn(told.address("told_fraction"))
        plugged.set_record_stream_fn(told.address("told_record"))
        cuda.init()
        assert told("devices", ctypes.c_int) == 2
        memory.empty_cache()
        assert told("resets", ctypes.c_int) == 1
        memory.set_per_process_memory_fraction(0.5, 1)
        assert (told("fraction", ctypes.c_double), told("fraction_device", ctypes.c_int)) == (0.5, 1)
        tensor, stream = forebay.zeros(3, device="cuda"), cuda.Stream()
        tensor.record_stream(stream)
        assert told("recorded", ctypes.c_void_p) == tensor.data_ptr()
        assert told("recorded_on", ctypes.c_void_p) == stream.cuda_stream

    @pytest.mark.parametrize(
        "name", ["set_base_alloc_fn", "set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn", "set_release_pool"]
    )
    def test_what_it_is_never_told(self, plugged, name):
        with pytest.raises(forebay.Unsupported, match="plugged allocator"):
            getattr(plugged, name)(1)


def test_the_native_allocator_serves_the_next_emulation(allocator, told):
    with forebay.emulate("cuda"):
        memory.change_current_allocator(allocator)
        kept = forebay.zeros(10, device="cuda")
    with forebay.emulate("cuda"):
        assert memory.get_allocator_backend() == "native"
        forebay.zeros(10, device="cuda")
        assert memory.memory_reserved() == 2 * MIB
    assert told("held") == 40
    del kept
    assert told("held") == 0


def test_it_cannot_come_after_the_first_use(allocator, emulated):
    cuda.init()
    with pytest.raises(WrongState, match=r"^Can't swap an already initialized allocator$"):
        memory.change_current_allocator(allocator)
    with pytest.raises(AttributeError, match="allocator"):
        memory.change_current_allocator(5)


def test_memory_that_is_not_aligned_is_refused_and_given_back(library, told, emulated):
    memory.change_current_allocator(memory.CUDAPluggableAllocator(str(library), "crooked", "give_crooked"))
    with pytest.raises(ForebayError, match=r"crooked of .* gave memory at 0x\w+, which is no multiple of 16"):
        forebay.zeros(10, device="cuda")
    assert told("held") == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_python_function_that_gives_none_has_no_memory(emulated):
    signature = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)

    @signature
    def empty(nbytes, device, stream):  # one that raises gives whatever lies there: ctypes leaves the result as it is
        return None

    address = ctypes.cast(empty, ctypes.c_void_p).value
    memory.change_current_allocator(
        memory._CUDAAllocator(forebay.runtime.allocator.pluggable_allocator.Plugged(address, address, empty))
    )
    with pytest.raises(forebay.OutOfMemory, match="the plugged allocator has no 40 B"):
        forebay.zeros(10, device="cuda")


@pytest.mark.usefixtures("emulated")
class TestForOnePool:
    def test_its_segments_come_from_it_and_go_back_to_it(self, allocator, told):
        pool = memory.MemPool(allocator.allocator())
        with memory.use_mem_pool(pool):
            small = forebay.full((1000,), 7, dtype="uint8", device="cuda")
            large = forebay.zeros(30 * MIB, dtype="uint8", device="cuda")
        assert (told("taken"), told("held")) == (2, 32 * MIB)
        assert small.tolist() == [7] * 1000
        cuda.synchronize()  # queued work keeps what it reads
        assert memory.memory_reserved() == 32 * MIB
        assert memory.mem_get_info()[0] == 64 * MIB  # the device has given nothing
        del small, large
        assert told("given") == 0  # cached
        del pool
        assert (told("given"), told("held"), memory.memory_reserved()) == (2, 0, 0)

    def test_blocks_outlive_their_pool(self, allocator, told):
        pool = memory.MemPool(allocator.allocator())
        with memory.use_mem_pool(pool):
            tensor = forebay.full((1000,), 7, dtype="uint8", device="cuda")
        gone = weakref.ref(pool)
        del pool, allocator
        gc.collect()
        assert gone() is None
        memory.empty_cache()
        assert tensor.tolist() == [7] * 1000
        del tensor
        cuda.synchronize()  # queued work keeps what it reads
        memory.empty_cache()
        assert told("held") == 0

    def test_no_memory_is_out_of_memory_and_counted(self, library):
        pool = memory.MemPool(memory.CUDAPluggableAllocator(str(library), "nothing", "give").allocator())
        words = r"CUDA out of memory\. Tried to allocate 2\.00 MiB"
        with memory.use_mem_pool(pool), pytest.raises(cuda.OutOfMemoryError, match=words):
            forebay.zeros(10, device="cuda")
        assert memory.memory_stats()["num_ooms"] == 1
        assert forebay.zeros(10, device="cuda").tolist() == [0] * 10

    def test_memory_that_is_not_aligned(self, library, told):
        pool = memory.MemPool(memory.CUDAPluggableAllocator(str(library), "crooked", "give_crooked").allocator())
        with memory.use_mem_pool(pool), pytest.raises(ForebayError, match="which is no multiple of 512"):
            forebay.zeros(10, device="cuda")
        assert (told("held"), memory.memory_reserved()) == (0, 0)

    def test_the_same_memory_twice(self, library):
        pool = memory.MemPool(memory.CUDAPluggableAllocator(str(library), "the_same", "keep").allocator())
        with memory.use_mem_pool(pool):
            tensor = forebay.full((10,), 7, device="cuda")
            with pytest.raises(ForebayError, match="that it had given before"):
                forebay.zeros(20 * MIB, dtype="uint8", device="cuda")
        assert tensor.tolist() == [7] * 10

    def test_growing_segments_are_not_its(self, allocator, told):
        forebay.memory.set_allocator_settings("expandable_segments:True")
        try:
            pool = memory.MemPool(allocator.allocator())
            with memory.use_mem_pool(pool):
                tensor = forebay.zeros(10, device="cuda")
            assert told("held") == 2 * MIB
            assert [row["is_expandable"] for row in pool.snapshot()] == [False]
            del tensor
        finally:
            forebay.memory.set_allocator_settings("expandable_segments:False")

    def test_eight_threads(self, allocator, told, eight_threads):
        pools = [memory.MemPool(allocator.allocator()) for _ in range(8)]

        def work(number):
            for _ in range(20):
                with memory.use_mem_pool(pools[number], 0):
                    forebay.zeros(3 * MIB, dtype="uint8", device="cuda:0")

        eight_threads(work)
        pools.clear()
        memory.empty_cache()
        assert told("held") == 0
