"""Behaviour of forebay.cuda.memory that the scenes do not compare with PyTorch (tests/names/scenes/memory*.py)."""

from __future__ import annotations

import ctypes
import pickle
import threading

import pytest

import forebay
from forebay import ForebayError, cuda
from forebay.cuda import memory
from forebay.runtime.devices import open_device, retired_devices

pytestmark = pytest.mark.usefixtures("clean")
MIB = 1 << 20


class TestWithoutDevices:
    def test_statistics_are_empty(self):
        assert (memory.memory_stats(), memory.memory_allocated(), memory.memory_snapshot()) == ({}, 0, [])
        assert memory._snapshot()["device_traces"] == []
        memory.empty_cache()

    def test_summary_contains_only_zeros(self):
        table = memory.memory_summary()
        assert "device ID 0" in table
        assert not any(character in "123456789" for character in table)

    @pytest.mark.parametrize("name", ["reset_peak_memory_stats", "reset_accumulated_memory_stats"])
    def test_reset_raises(self, name):
        with pytest.raises(RuntimeError, match=f"^invalid argument to {name}$"):
            getattr(memory, name)()

    @pytest.mark.parametrize(
        "call",
        [
            memory.mem_get_info,
            memory.get_per_process_memory_fraction,
            lambda: memory.caching_allocator_alloc(10),
            memory._record_memory_history,
        ],
        ids=["mem_get_info", "fraction", "alloc", "record"],
    )
    def test_other_calls_report_missing_driver(self, call):
        with pytest.raises(RuntimeError, match="Found no NVIDIA driver on your system"):
            call()


class TestQueries:
    def test_statistics_do_not_open_device(self, emulated):
        cuda.init()
        assert memory.memory_stats(1)["allocated_bytes.all.current"] == 0
        assert "device ID 1" in memory.memory_summary(1)
        memory.reset_peak_memory_stats(1)
        assert memory.get_per_process_memory_fraction(1) == 1.0
        assert memory.mem_get_info(1) == (64 * MIB, 64 * MIB)
        assert open_device.open_device_indices("cuda") == [1]  # by mem_get_info only

    def test_invalid_index_raises(self, emulated):
        cuda.init()
        for call in (memory.memory_stats, memory.memory_allocated, memory.reset_peak_memory_stats):
            for index in (2, -1):
                with pytest.raises(RuntimeError, match=f"^Invalid device argument {index}: did you call init\\?$"):
                    call(index)

    def test_summary_does_not_initialise_cuda(self, emulated):
        assert "device ID 1" in memory.memory_summary(1)
        assert not cuda.is_initialized()

    def test_fraction_of_unopened_device_is_the_setting(self, emulated):
        forebay.memory.set_allocator_settings("per_process_memory_fraction:0.5")
        try:
            cuda.init()
            assert memory.get_per_process_memory_fraction(1) == 0.5
        finally:
            forebay.memory.set_allocator_settings("per_process_memory_fraction:1.0")


class TestCachingAllocatorAlloc:
    def test_memory_is_usable(self, emulated):
        address = memory.caching_allocator_alloc(1000)
        with memory._use_uvm():
            managed = forebay.full((1000,), 7, dtype="uint8", device="cuda")
        forebay.synchronize("cuda")
        assert ctypes.string_at(managed.data_ptr(), 3) == b"\7\7\7"
        memory.caching_allocator_delete(address)

    def test_memory_is_released_when_emulation_ends(self):
        before = retired_devices.remaining()  # devices whose backend cannot release their memory
        with forebay.emulate("cuda"):
            address = memory.caching_allocator_alloc(1000)
        assert retired_devices.remaining() == before
        with pytest.raises(RuntimeError, match=f"invalid device pointer: {address:#x}"):
            memory.caching_allocator_delete(address)

    @pytest.mark.parametrize("size", ["x", 1.5, None, -1])
    def test_invalid_size_raises(self, emulated, size):
        with pytest.raises(ValueError, match="requires a non-negative size"):
            memory.caching_allocator_alloc(size)

    def test_delete_rejects_non_int_address(self):
        with pytest.raises(TypeError, match="mem_ptr must be an int, not str"):
            memory.caching_allocator_delete("x")

    def test_delete_rejects_tensor_address(self, emulated):
        tensor = forebay.zeros(10, device="cuda")
        with pytest.raises(RuntimeError, match="invalid device pointer"):
            memory.caching_allocator_delete(tensor.data_ptr())
        assert tensor.tolist() == [0] * 10

    def test_concurrent_alloc_and_delete(self, emulated, eight_threads):
        def work(_):
            for _ in range(50):
                memory.caching_allocator_delete(memory.caching_allocator_alloc(4096))

        eight_threads(work)
        assert memory.memory_allocated() == 0


class TestPools:
    def test_invalid_pool_arguments_raise(self, emulated):
        with pytest.raises(TypeError, match=r"result of CUDAPluggableAllocator\(\.\.\.\)\.allocator\(\), not int"):
            memory.MemPool(5)
        with pytest.raises(TypeError, match="expected a MemPool, not int"), memory.use_mem_pool(5):
            pass

    def test_pool_can_outlive_its_emulation(self):
        before = retired_devices.remaining()
        with forebay.emulate("cuda"):
            pool = memory.MemPool()
            with memory.use_mem_pool(pool):
                tensor = forebay.zeros(10, device="cuda")
        del tensor
        assert pool.snapshot() == []
        del pool
        retired_devices.close_unused()
        assert retired_devices.remaining() == before

    def test_snapshot_of_the_default_pool_contains_all_pools(self, emulated):
        pool = memory.MemPool()
        with memory.use_mem_pool(pool):
            held = [forebay.empty(100, device="cuda")]
        held.append(forebay.empty(100, device="cuda"))
        assert [len(memory.memory_snapshot(number)) for number in (None, (0, 0), pool.id)] == [2, 2, 1]

    def test_graph_retains_pools_used_in_its_capture(self, emulated):
        graph, pool = cuda.CUDAGraph(), memory.MemPool()
        with cuda.graph(graph), memory.use_mem_pool(pool):
            forebay.zeros(1000, device="cuda")
        assert pool.id in graph.pools()
        assert pool.use_count() == 2
        del graph
        assert pool.use_count() == 1

    def test_managed_memory_can_exceed_device_memory(self, emulated):
        with memory._use_uvm() as pool:
            large = forebay.zeros(200 * MIB, dtype="uint8", device="cuda")
        assert [segment["total_size"] for segment in pool.snapshot()] == [200 * MIB]
        assert memory.mem_get_info() == (64 * MIB, 64 * MIB)
        del large, pool
        assert memory.memory_reserved() == 0


class TestHistory:
    def test_recording_includes_devices_opened_later(self, emulated):
        memory._record_memory_history(max_entries=10)
        tensor = forebay.zeros(10, device="cuda:1")
        assert [entry["action"] for entry in memory._snapshot()["device_traces"][1]] == ["segment_alloc", "alloc"]
        memory._record_memory_history(None)
        assert forebay.zeros(10, device="cuda:0").shape == tensor.shape
        assert memory._snapshot()["device_traces"] == [[], []]

    def test_recording_of_pinned_memory_only(self, emulated):
        forebay.zeros(10, device="cuda")
        memory._record_memory_history(record_cuda=False, record_pinned_host_memory=True)
        array = forebay.empty_pinned(1000, device="cuda")
        snapshot = memory._snapshot()
        assert [entry["action"] for entry in snapshot["host_traces"]] == ["segment_alloc", "alloc"]
        assert snapshot["device_traces"] == [[], []]
        assert array.shape == (1000,)
        memory._record_memory_history(None)

    def test_recording_ends_with_emulation(self):
        with forebay.emulate("cuda"):
            memory._record_memory_history()
        with forebay.emulate("cuda"):
            forebay.zeros(10, device="cuda")
            assert memory._snapshot()["device_traces"] == [[]]

    def test_dump_contains_plain_data(self, emulated, tmp_path):
        memory._record_memory_history()
        tensor = forebay.zeros(10, device="cuda")
        memory._dump_snapshot(str(tmp_path / "dump.pickle"))
        found = pickle.loads((tmp_path / "dump.pickle").read_bytes())
        assert found["segments"][0]["blocks"][0]["address"] == tensor.data_ptr()

    def test_annotate_rejects_other_tensors(self, emulated):
        with pytest.raises(ValueError, match="expected a CUDA tensor, got device cpu"):
            memory._annotate_tensor(forebay.zeros(3, device="cpu"), "x")
        with pytest.raises(RuntimeError, match="annotateMemory: no live allocation found at pointer"):
            memory._annotate_tensor(forebay.zeros(0, device="cuda"), "x")


def test_caching_allocator_disabled_restores_setting_after_error(emulated):
    cuda.init()
    with pytest.raises(forebay.OutOfMemory), memory.caching_allocator_disabled():
        forebay.allocate(65 * MIB, "cuda")
    assert "Uncached" not in repr(forebay.allocate(10, "cuda"))


def test_free_mutex_blocks_release_of_segments(emulated):
    forebay.allocate(10, "cuda").free()
    done = threading.Event()

    def empty():
        memory.empty_cache()
        done.set()

    with memory._free_mutex():
        thread = threading.Thread(target=empty, daemon=True)
        thread.start()
        free, _ = memory.mem_get_info()
        assert free == 62 * MIB
        assert not done.is_set()
    thread.join(60)
    assert memory.mem_get_info()[0] == 64 * MIB


def test_host_allocator_returns_constant_nonzero_number(emulated):
    assert memory._host_allocator() == memory._host_allocator() != 0


def test_errors_are_forebay_errors(emulated):
    with pytest.raises(ForebayError, match=r"^Device index value 9 is out of index range \[0, 2\)$"):
        memory.caching_allocator_alloc(10, 9)
