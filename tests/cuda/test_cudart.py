"""CUDA's runtime library: streams, registered memory, codes; and ranges in the queues of devices."""

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


def test_all_of_cudas_codes_are_known():
    assert len(codes()) == 136
    assert codes()[700] == ("cudaErrorIllegalAddress", "an illegal memory access was encountered")
    assert text_of(12345) == "unrecognized error code"


def test_an_accelerator_error_says_it_as_pytorch():
    error = accelerator_error(101, device="cuda:9", note="There is 1.")
    assert (
        str(error)
        == "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\nThere is 1.\n"
    )
    assert (error.error_code, error.device) == (101, "cuda:9")
    assert str(accelerator_error(12345)) == "CUDA error: unrecognized error code\n"
    assert isinstance(error, AcceleratorError)


def test_an_error_is_raised_for_what_is_no_success(runtime):
    check_error(runtime.cudaError.success)
    with pytest.raises(CudaError, match=r"^out of memory \(2\)$"):
        check_error(runtime.cudaError(2))


def made(runtime):
    handle = ctypes.c_uint64()
    check_error(runtime.cudaStreamCreate(ctypes.addressof(handle)))
    return handle.value


def test_streams_are_unlike_all_others_and_their_queues_serve_again(runtime):
    first, second = made(runtime), made(runtime)
    pool = {forebay.Stream("cuda:0").handle for _ in range(32)}
    assert len({first, second, 0, *pool}) == 35
    check_error(runtime.cudaStreamDestroy(first))
    assert made(runtime) == first
    assert [runtime.cudaStreamDestroy(handle) for handle in (second, second, 0, 5)] == [0, 400, 400, 400]
    assert runtime.cudaStreamCreate(0) == 1


def test_a_destroyed_streams_queue_serves_no_other_device(runtime):
    forebay.set_device("cuda:0")
    first = made(runtime)
    runtime.cudaStreamDestroy(first)
    forebay.set_device("cuda:1")
    other = made(runtime)
    assert other != first
    forebay.set_device("cuda:0")
    assert made(runtime) == first


def test_streams_end_with_their_emulation():
    with forebay.emulate("cuda"):
        handle, destroyed = made(cudart()), made(cudart())
        cudart().cudaStreamDestroy(destroyed)
    with forebay.emulate("cuda"):
        assert made(cudart()) != destroyed
        assert cudart().cudaStreamDestroy(handle) == 0  # known still, and of no use to anybody


def registered(runtime, array):
    return runtime.cudaHostRegister(array.ctypes.data, array.nbytes, 0)


def test_memory_is_registered_once(runtime, memory):
    inside = memory[100:200]
    assert [registered(runtime, memory), registered(runtime, memory), registered(runtime, inside)] == [0, 712, 712]
    assert runtime.cudaHostUnregister(inside.ctypes.data) == 713
    assert [runtime.cudaHostUnregister(memory.ctypes.data) for _ in range(2)] == [0, 713]
    assert [registered(runtime, inside), runtime.cudaHostUnregister(inside.ctypes.data)] == [0, 0]


@pytest.mark.parametrize(
    ("pointer", "size", "flags"), [(0, 4096, 0), (4096, 0, 0), (4096, -1, 0), (1 << 62, 1 << 62, 0), (4096, 4096, 16)]
)
def test_nonsense_is_not_registered(runtime, pointer, size, flags):
    assert runtime.cudaHostRegister(pointer, size, flags) == 1


def test_memory_that_is_not_there_is_not_registered(runtime, memory):
    assert runtime.cudaHostRegister(1 << 46, 4096, 0) == 2
    assert runtime.cudaHostUnregister(1 << 46) == 713


def locked(array):
    """Bytes of the mapping around the array that the system has locked."""
    address, inside = array.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and ":" not in head:
            low, high = (int(end, 16) for end in head.split("-"))
            inside = low <= address < high
        elif inside and head == "Locked:":
            return int(line.split()[1]) << 10
    return 0


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell what is locked")
def test_pages_that_two_registrations_share_stay_locked(runtime, memory):
    low, high = memory[: 4096 + 100], memory[4096 + 200 : 3 * 4096]
    assert [registered(runtime, low), registered(runtime, high)] == [0, 0]
    assert runtime.cudaHostUnregister(low.ctypes.data) == 0
    assert (locked(low), locked(high)) == (0, 2 * 4096)
    assert runtime.cudaHostUnregister(high.ctypes.data) == 0
    assert locked(high) == 0


@pytest.mark.parametrize(("pinned", "arrived"), [(True, 9), (False, 7)], ids=["registered", "pageable"])
def test_a_queued_copy_reads_registered_memory_when_its_turn_comes(runtime, memory, pinned, arrived):
    stream, may = forebay.Stream("cuda:0"), threading.Event()
    target = forebay.empty(memory.size, dtype="uint8", device="cuda:0")
    if pinned:
        registered(runtime, memory)
    memory[:] = 7
    stream.queue.call(lambda: may.wait(30))
    with stream:
        target.copy_(memory, non_blocking=True)
        memory[:] = 9  # what is not pinned was staged
        may.set()
        assert set(target.tolist()) == {arrived}
    assert runtime.cudaHostUnregister(memory.ctypes.data) == (0 if pinned else 713)


def test_an_emulations_end_lets_go_of_registered_memory(memory):
    with forebay.emulate("cuda"):
        registered(cudart(), memory)
    with forebay.emulate("cuda"):
        assert [registered(cudart(), memory), cudart().cudaHostUnregister(memory.ctypes.data)] == [0, 0]


def test_a_range_begins_and_ends_in_the_queue(runtime):
    may, stream = threading.Event(), forebay.Stream("cuda:0")
    stream.queue.call(lambda: may.wait(30))
    with ranges.recorded() as found:
        started = nvtx._device_range_start("in the queue", stream.handle)
        ranges.mark("on the host")
        may.set()
        nvtx._device_range_end(started, stream.handle)
        stream.synchronize()
    assert [each.name for each in found] == ["on the host", "in the queue"]
    with pytest.raises(ValueError, match="not the handle of a stream"):
        nvtx._device_range_start("x", 12345)
    with pytest.raises(TypeError, match="_device_range_start"):
        nvtx._device_range_end(5)


def test_the_profilers_switch_is_a_mark(runtime):
    with ranges.recorded() as found, profiler.profile():
        pass
    assert [each.name for each in found] == ["cudaProfilerStart", "cudaProfilerStop"]
