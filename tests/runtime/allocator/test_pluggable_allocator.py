"""Pluggable allocators in shared libraries, for all of CUDA or for one MemPool."""

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
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"),
]
MIB = 1 << 20


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("pluggable") / "allocator.so"
    source = Path(__file__).with_name("pluggable_allocator.cpp")
    command = [COMPILER, "-std=c++17", "-shared", "-fPIC", "-o", path, source]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture
def recorded(library):
    """Read the library's records of its calls since the test began."""
    loaded = ctypes.CDLL(library)
    loaded.reset_records()

    def read(name, kind=ctypes.c_ssize_t):
        return kind.in_dll(loaded, name).value

    read.address = lambda name: ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value
    return read


@pytest.fixture
def allocator(library):
    return memory.CUDAPluggableAllocator(str(library), "allocate", "release")


class TestLoading:
    def test_missing_library_raises(self):
        with pytest.raises(OSError, match="cannot open shared object file"):
            memory.CUDAPluggableAllocator("/nowhere.so", "allocate", "release")

    def test_missing_function_raises(self, library):
        with pytest.raises(AttributeError, match="undefined symbol: grab"):
            memory.CUDAPluggableAllocator(str(library), "grab", "release")

    def test_allocator_is_a_cuda_allocator(self, allocator):
        assert isinstance(allocator, memory._CUDAAllocator)
        assert repr(allocator.allocator()).startswith("allocate of ")


@pytest.mark.usefixtures("emulated")
class TestForAllOfCuda:
    @pytest.fixture(autouse=True)
    def pluggable(self, allocator, emulated):
        memory.change_current_allocator(allocator)
        return allocator.allocator()

    def test_tensors_use_the_allocator(self, recorded, allocator):
        assert memory.get_allocator_backend() == "pluggable"
        assert memory._get_current_allocator().allocator() is allocator.allocator()
        with cuda.stream(cuda.Stream("cuda:1")) as _:
            tensor = forebay.full((1000,), 7, dtype="uint8", device="cuda:1")
            stream = cuda.current_stream().cuda_stream
        assert (recorded("allocations"), recorded("held_bytes"), recorded("last_device", ctypes.c_int)) == (1, 1000, 1)
        assert recorded("last_stream", ctypes.c_void_p) == stream
        cuda.synchronize(1)
        assert tensor.tolist() == [7] * 1000
        del tensor
        cuda.synchronize(1)  # queued work keeps the memory it reads alive
        assert (recorded("frees"), recorded("held_bytes")) == (1, 0)

    def test_memory_is_released_after_queued_work(self, recorded):
        gate, other = threading.Event(), cuda.Stream()
        held = [forebay.zeros(1000, device="cuda")]
        other.queue.call(gate.wait)
        freeing = threading.Thread(target=held.clear, daemon=True)
        freeing.start()
        assert recorded("frees") == 0
        gate.set()
        freeing.join(60)
        assert recorded("frees") == 1

    def test_allocation_by_address(self, recorded):
        address = memory.caching_allocator_alloc(1000)
        assert recorded("held_bytes") == 1000
        with pytest.raises(RuntimeError, match=r"^Trying to free a pointer not allocated here$"):
            memory.caching_allocator_delete(address + 8)
        memory.caching_allocator_delete(address)
        assert recorded("held_bytes") == 0

    def test_allocator_cannot_be_changed_twice(self, allocator):
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
    def test_statistics_are_not_supported(self, name, call):
        cuda.init()
        words = f"^CUDAPluggableAllocator does not yet support {call}. If you need it, please file an issue describing"
        with pytest.raises(RuntimeError, match=words):
            getattr(memory, name)()

    def test_other_functions_still_work(self):
        assert memory.memory_stats() == {}  # CUDA is not initialised
        assert memory.mem_get_info() == (64 * MIB, 64 * MIB)
        assert not memory._memory_metadata_supported()
        memory._annotate_tensor(forebay.zeros(3, device="cuda"), "ignored")
        assert memory._allocation_traceback(5) is None

    def test_pools_are_not_supported(self):
        with pytest.raises(RuntimeError, match=r"^pluggable does not yet support createOrIncrefPool"):
            memory.MemPool()

    def test_failed_allocation_raises_out_of_memory(self, recorded):
        with pytest.raises(forebay.OutOfMemory, match=r"allocate of .* could not allocate 65\.00 MiB"):
            forebay.empty(65 * MIB, dtype="uint8", device="cuda")
        assert recorded("allocations") == 0

    def test_optional_callbacks_are_called(self, pluggable, recorded):
        pluggable.set_init_fn(recorded.address("on_init"))
        pluggable.set_reset_fn(recorded.address("on_reset"))
        pluggable.set_memory_fraction_fn(recorded.address("on_fraction"))
        pluggable.set_record_stream_fn(recorded.address("on_record_stream"))
        cuda.init()
        assert recorded("devices", ctypes.c_int) == 2
        memory.empty_cache()
        assert recorded("resets", ctypes.c_int) == 1
        memory.set_per_process_memory_fraction(0.5, 1)
        assert (recorded("fraction", ctypes.c_double), recorded("fraction_device", ctypes.c_int)) == (0.5, 1)
        tensor, stream = forebay.zeros(3, device="cuda"), cuda.Stream()
        tensor.record_stream(stream)
        assert recorded("recorded_address", ctypes.c_void_p) == tensor.data_ptr()
        assert recorded("recorded_stream", ctypes.c_void_p) == stream.cuda_stream

    @pytest.mark.parametrize(
        "name", ["set_base_alloc_fn", "set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn", "set_release_pool"]
    )
    def test_unsupported_callbacks_are_rejected(self, pluggable, name):
        with pytest.raises(forebay.Unsupported, match="pluggable allocator"):
            getattr(pluggable, name)(1)


def test_next_emulation_uses_the_native_allocator(allocator, recorded):
    with forebay.emulate("cuda"):
        memory.change_current_allocator(allocator)
        kept = forebay.zeros(10, device="cuda")
    with forebay.emulate("cuda"):
        assert memory.get_allocator_backend() == "native"
        forebay.zeros(10, device="cuda")
        assert memory.memory_reserved() == 2 * MIB
    assert recorded("held_bytes") == 40
    del kept
    assert recorded("held_bytes") == 0


def test_allocator_cannot_be_changed_after_initialisation(allocator, emulated):
    cuda.init()
    with pytest.raises(WrongState, match=r"^Can't swap an already initialized allocator$"):
        memory.change_current_allocator(allocator)
    with pytest.raises(AttributeError, match="allocator"):
        memory.change_current_allocator(5)


def test_misaligned_memory_is_rejected_and_released(library, recorded, emulated):
    memory.change_current_allocator(memory.CUDAPluggableAllocator(str(library), "misaligned", "release_misaligned"))
    with pytest.raises(ForebayError, match=r"misaligned of .* returned memory at 0x\w+, which is not a multiple of 16"):
        forebay.zeros(10, device="cuda")
    assert recorded("held_bytes") == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_python_function_that_returns_none_raises_out_of_memory(emulated):
    signature = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)

    @signature
    def empty(nbytes, device, stream):  # not one that raises: ctypes leaves its result uninitialised
        return None

    address = ctypes.cast(empty, ctypes.c_void_p).value
    memory.change_current_allocator(
        memory._CUDAAllocator(forebay.runtime.allocator.pluggable_allocator.AllocatorFunctions(address, address, empty))
    )
    with pytest.raises(forebay.OutOfMemory, match="the pluggable allocator could not allocate 40 B"):
        forebay.zeros(10, device="cuda")


@pytest.mark.usefixtures("emulated")
class TestForOnePool:
    def test_segments_are_reserved_from_and_released_to_the_allocator(self, allocator, recorded):
        pool = memory.MemPool(allocator.allocator())
        with memory.use_mem_pool(pool):
            small = forebay.full((1000,), 7, dtype="uint8", device="cuda")
            large = forebay.zeros(30 * MIB, dtype="uint8", device="cuda")
        assert (recorded("allocations"), recorded("held_bytes")) == (2, 32 * MIB)
        assert small.tolist() == [7] * 1000
        cuda.synchronize()  # queued work keeps the memory it reads alive
        assert memory.memory_reserved() == 32 * MIB
        assert memory.mem_get_info()[0] == 64 * MIB  # nothing is reserved from the device
        del small, large
        assert recorded("frees") == 0  # cached
        del pool
        assert (recorded("frees"), recorded("held_bytes"), memory.memory_reserved()) == (2, 0, 0)

    def test_blocks_outlive_their_pool(self, allocator, recorded):
        pool = memory.MemPool(allocator.allocator())
        with memory.use_mem_pool(pool):
            tensor = forebay.full((1000,), 7, dtype="uint8", device="cuda")
        reference = weakref.ref(pool)
        del pool, allocator
        gc.collect()
        assert reference() is None
        memory.empty_cache()
        assert tensor.tolist() == [7] * 1000
        del tensor
        cuda.synchronize()  # queued work keeps the memory it reads alive
        memory.empty_cache()
        assert recorded("held_bytes") == 0

    def test_failed_allocation_raises_out_of_memory_and_is_counted(self, library):
        pool = memory.MemPool(memory.CUDAPluggableAllocator(str(library), "allocate_nothing", "release").allocator())
        words = r"CUDA out of memory\. Tried to allocate 2\.00 MiB"
        with memory.use_mem_pool(pool), pytest.raises(cuda.OutOfMemoryError, match=words):
            forebay.zeros(10, device="cuda")
        assert memory.memory_stats()["num_ooms"] == 1
        assert forebay.zeros(10, device="cuda").tolist() == [0] * 10

    def test_misaligned_memory_is_rejected(self, library, recorded):
        pool = memory.MemPool(
            memory.CUDAPluggableAllocator(str(library), "misaligned", "release_misaligned").allocator()
        )
        with memory.use_mem_pool(pool), pytest.raises(ForebayError, match="which is not a multiple of 512"):
            forebay.zeros(10, device="cuda")
        assert (recorded("held_bytes"), memory.memory_reserved()) == (0, 0)

    def test_memory_still_in_use_is_rejected(self, library):
        pool = memory.MemPool(memory.CUDAPluggableAllocator(str(library), "same", "release_nothing").allocator())
        with memory.use_mem_pool(pool):
            tensor = forebay.full((10,), 7, device="cuda")
            with pytest.raises(ForebayError, match="that is still in use"):
                forebay.zeros(20 * MIB, dtype="uint8", device="cuda")
        assert tensor.tolist() == [7] * 10

    def test_segments_are_not_expandable(self, allocator, recorded):
        forebay.memory.set_allocator_settings("expandable_segments:True")
        try:
            pool = memory.MemPool(allocator.allocator())
            with memory.use_mem_pool(pool):
                tensor = forebay.zeros(10, device="cuda")
            assert recorded("held_bytes") == 2 * MIB
            assert [row["is_expandable"] for row in pool.snapshot()] == [False]
            del tensor
        finally:
            forebay.memory.set_allocator_settings("expandable_segments:False")

    def test_eight_threads_with_one_pool_each(self, allocator, recorded, eight_threads):
        pools = [memory.MemPool(allocator.allocator()) for _ in range(8)]

        def work(number):
            for _ in range(20):
                with memory.use_mem_pool(pools[number], 0):
                    forebay.zeros(3 * MIB, dtype="uint8", device="cuda:0")

        eight_threads(work)
        pools.clear()
        memory.empty_cache()
        assert recorded("held_bytes") == 0
