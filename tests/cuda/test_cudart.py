"""CUDA runtime functions: streams, registered memory, error codes; and NVTX ranges in device queues."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import numpy as np
import pytest

import forebay
from forebay.backends.common.cuda_errors import accelerator_error, codes, text_of
from forebay.cuda import nvtx, profiler
from forebay.cuda.runtime_api import AcceleratorError, CudaError, check_error, cudart
from forebay.observe.ranges import ranges


@pytest.fixture
def runtime():
    with forebay.emulate("cuda", count=2, memory=64 << 20):
        yield cudart()


@pytest.fixture
def memory():
    """A page-aligned mapping of 4 pages, as an array of bytes."""
    whole = np.zeros(5 * 4096, np.uint8)
    start = -whole.ctypes.data % 4096
    return whole[start : start + 4 * 4096]


def test_all_cuda_error_codes_are_known():
    assert len(codes()) == 136
    assert codes()[700] == ("cudaErrorIllegalAddress", "an illegal memory access was encountered")
    assert text_of(12345) == "unrecognized error code"


def test_accelerator_error_has_pytorchs_text():
    error = accelerator_error(101, device="cuda:9", note="There is 1.")
    assert (
        str(error) == "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n"
    )
    assert error.__notes__ == ["There is 1."]
    assert (error.error_code, error.device) == (101, "cuda:9")
    assert str(accelerator_error(12345)) == "CUDA error: unrecognized error code\n"
    assert isinstance(error, AcceleratorError)


def test_check_error_raises_unless_success(runtime):
    check_error(runtime.cudaError.success)
    with pytest.raises(CudaError, match=r"^out of memory \(2\)$"):
        check_error(runtime.cudaError(2))


def create_stream(runtime):
    handle = ctypes.c_uint64()
    check_error(runtime.cudaStreamCreate(ctypes.addressof(handle)))
    return handle.value


def test_created_streams_are_distinct_and_queues_are_reused(runtime):
    first, second = create_stream(runtime), create_stream(runtime)
    pool = {forebay.Stream("cuda:0").handle for _ in range(32)}
    assert len({first, second, 0, *pool}) == 35
    check_error(runtime.cudaStreamDestroy(first))
    assert create_stream(runtime) == first
    assert [runtime.cudaStreamDestroy(handle) for handle in (second, second, 0, 5)] == [0, 400, 400, 400]
    for address in (0, -1, 5, 4096, 1 << 47, 1 << 70):
        assert runtime.cudaStreamCreate(address) == 1


def test_destroyed_streams_queue_is_not_reused_on_other_device(runtime):
    forebay.set_device("cuda:0")
    first = create_stream(runtime)
    runtime.cudaStreamDestroy(first)
    forebay.set_device("cuda:1")
    other = create_stream(runtime)
    assert other != first
    forebay.set_device("cuda:0")
    assert create_stream(runtime) == first


def test_streams_are_not_reused_after_emulation_ends():
    with forebay.emulate("cuda"):
        handle, destroyed = create_stream(cudart()), create_stream(cudart())
        cudart().cudaStreamDestroy(destroyed)
    with forebay.emulate("cuda"):
        assert create_stream(cudart()) != destroyed
        assert cudart().cudaStreamDestroy(handle) == 0  # still known, though unusable


def register(runtime, array):
    return runtime.cudaHostRegister(array.ctypes.data, array.nbytes, 0)


def test_overlapping_registration_is_rejected(runtime, memory):
    inside = memory[100:200]
    assert [register(runtime, memory), register(runtime, memory), register(runtime, inside)] == [0, 712, 712]
    assert runtime.cudaHostUnregister(inside.ctypes.data) == 713
    assert [runtime.cudaHostUnregister(memory.ctypes.data) for _ in range(2)] == [0, 713]
    assert [register(runtime, inside), runtime.cudaHostUnregister(inside.ctypes.data)] == [0, 0]


@pytest.mark.parametrize(
    ("pointer", "size", "flags"), [(0, 4096, 0), (4096, 0, 0), (4096, -1, 0), (1 << 62, 1 << 62, 0), (4096, 4096, 16)]
)
def test_register_rejects_invalid_arguments(runtime, pointer, size, flags):
    assert runtime.cudaHostRegister(pointer, size, flags) == 1


def test_register_rejects_unmapped_memory(runtime, memory):
    assert runtime.cudaHostRegister(1 << 46, 4096, 0) == 2
    assert runtime.cudaHostUnregister(1 << 46) == 713


def locked_bytes(array):
    """Return the locked bytes of the mapping that contains the array."""
    address, inside = array.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and ":" not in head:
            low, high = (int(end, 16) for end in head.split("-"))
            inside = low <= address < high
        elif inside and head == "Locked:":
            return int(line.split()[1]) << 10
    return 0


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not report locked memory")
def test_page_shared_by_two_registrations_stays_locked(runtime, memory):
    low, high = memory[: 4096 + 100], memory[4096 + 200 : 3 * 4096]
    assert [register(runtime, low), register(runtime, high)] == [0, 0]
    assert runtime.cudaHostUnregister(low.ctypes.data) == 0
    assert (locked_bytes(low), locked_bytes(high)) == (0, 2 * 4096)
    assert runtime.cudaHostUnregister(high.ctypes.data) == 0
    assert locked_bytes(high) == 0


@pytest.mark.parametrize(("pinned", "expected"), [(True, 9), (False, 7)], ids=["registered", "pageable"])
def test_queued_copy_reads_registered_memory_when_it_runs(runtime, memory, pinned, expected):
    stream, gate = forebay.Stream("cuda:0"), threading.Event()
    target = forebay.empty(memory.size, dtype="uint8", device="cuda:0")
    if pinned:
        register(runtime, memory)
    memory[:] = 7
    stream.queue.call(lambda: gate.wait(30))
    with stream:
        target.copy_(memory, non_blocking=True)
        memory[:] = 9  # pageable memory was staged before
        gate.set()
        assert set(target.tolist()) == {expected}
    assert runtime.cudaHostUnregister(memory.ctypes.data) == (0 if pinned else 713)


def test_memory_is_unregistered_when_emulation_ends(memory):
    with forebay.emulate("cuda"):
        register(cudart(), memory)
    with forebay.emulate("cuda"):
        assert [register(cudart(), memory), cudart().cudaHostUnregister(memory.ctypes.data)] == [0, 0]


def test_device_range_begins_and_ends_in_queue_order(runtime):
    gate, stream = threading.Event(), forebay.Stream("cuda:0")
    stream.queue.call(lambda: gate.wait(30))
    with ranges.recorded() as found:
        started = nvtx._device_range_start("in the queue", stream.handle)
        ranges.mark("on the host")
        gate.set()
        nvtx._device_range_end(started, stream.handle)
        stream.synchronize()
    assert [each.name for each in found] == ["on the host", "in the queue"]
    with pytest.raises(ValueError, match="not the handle of a stream"):
        nvtx._device_range_start("x", 12345)
    with pytest.raises(TypeError, match="_device_range_start"):
        nvtx._device_range_end(5)


def test_profiler_start_and_stop_are_marks(runtime):
    with ranges.recorded() as found, profiler.profile():
        pass
    assert [each.name for each in found] == ["cudaProfilerStart", "cudaProfilerStop"]
