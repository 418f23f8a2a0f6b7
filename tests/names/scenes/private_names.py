"""Names of `torch._C` that libraries use beside the public ones."""

from __future__ import annotations

import threading
from importlib import import_module

from support.on_oracle import outcome

FRESH_PROCESS = True  # for what happens before the first use
NAMES = """
_CUDAGraph _CudaEventBase _CudaStreamBase _MemPool _accelerator_isAllocatorInitialized _accelerator_setAllocatorSettings
_activate_gpu_trace _add_cached_tensor
_cuda_attach_out_of_memory_observer _cuda_canDeviceAccessPeer _cuda_clearCublasWorkspaces
_cuda_cudaCachingAllocator_enable _cuda_cudaCachingAllocator_is_enabled _cuda_cudaCachingAllocator_raw_alloc
_cuda_cudaCachingAllocator_raw_delete _cuda_cudaHostAllocator _cuda_emptyCache _cuda_exchangeDevice
_cuda_getAllocatorBackend _cuda_getCurrentRawStream _cuda_getCurrentStream _cuda_getDefaultStream _cuda_getDevice
_cuda_getDeviceCount _cuda_getMemoryFraction _cuda_getMemoryMetadata _cuda_get_conv_benchmark_empty_cache
_cuda_get_sync_debug_mode _cuda_hasPrimaryContext _cuda_hostMemoryStats _cuda_init _cuda_ipc_collect
_cuda_isCurrentStreamCapturing _cuda_isHistoryEnabled _cuda_isInBadFork _cuda_maybeExchangeDevice
_cuda_memoryMetadataSupported _cuda_memorySnapshot _cuda_memoryStats _cuda_record_memory_history
_cuda_resetAccumulatedHostMemoryStats _cuda_resetAccumulatedMemoryStats _cuda_resetPeakHostMemoryStats
_cuda_resetPeakMemoryStats _cuda_setDevice _cuda_setMemoryFraction _cuda_setMemoryMetadata _cuda_setStream
_cuda_set_sync_debug_mode _cuda_sleep _cuda_synchronize _cudnn_set_conv_benchmark_empty_cache _get_obj_in_tls
_graph_pool_handle _host_emptyCache _is_cached_tensor _is_key_in_tls _remove_cached_tensor _remove_obj_from_tls
_set_cached_tensors_enabled _stash_obj_in_tls
"""
POOL_NAMES = """
_cuda_beginAllocateCurrentThreadToPool _cuda_beginAllocateToPool _cuda_endAllocateToPool _cuda_releasePool
"""


def empty(torch_like, nbytes):
    return torch_like.empty(nbytes, dtype=torch_like.uint8, device="cuda")


def names(cuda, torch_like):
    memory = [getattr(cuda.memory, name) is getattr(torch_like._C, name) for name in POOL_NAMES.split()]
    return [name for name in NAMES.split() if not hasattr(torch_like._C, name)], memory


def before_the_first_use(cuda, torch_like):
    c = torch_like._C
    quiet = "clearCublasWorkspaces isInBadFork isCurrentStreamCapturing get_sync_debug_mode memoryMetadataSupported "
    quiet += "cudaCachingAllocator_is_enabled emptyCache getDeviceCount get_conv_benchmark_empty_cache"
    results = [[name, getattr(c, f"_cuda_{name}")()] for name in quiet.split()]
    results += [c._host_emptyCache(), c._cuda_getMemoryMetadata(), c._cuda_getAllocatorBackend()]
    return [*results, cuda.is_initialized(), c._cuda_getDevice(), cuda.is_initialized()]


def allocator_is_initialized(cuda, torch_like):
    initialised = torch_like._C._accelerator_isAllocatorInitialized
    before = initialised(), cuda.is_initialized()
    cuda.init()
    after = initialised()
    empty(torch_like, 1)
    return before, after, initialised()


def notifications_after_activation(cuda, torch_like):
    """Callbacks of the GPU trace, activated as PyTorch's tests do."""
    trace = import_module(f"{cuda.__name__}._gpu_trace")
    results, made = [torch_like._C._activate_gpu_trace()], []
    trace.register_callback_for_memory_allocation(made.append)
    results.append(empty(torch_like, 1).data_ptr() == made[0])
    return results, torch_like._C._activate_gpu_trace(), len(made)


def observers_of_out_of_memory(cuda, torch_like):
    seen, attach = [], torch_like._C._cuda_attach_out_of_memory_observer
    attach(lambda *numbers: seen.append(numbers))
    results = [cuda.is_initialized()]
    for device in (0, 1):
        with cuda.device(device):
            results.append(outcome(cuda, empty, torch_like, 3 << 30)["error"])
    attach(lambda *numbers: seen.append(len(numbers)))
    empty(torch_like, 100)
    results.append(outcome(cuda, empty, torch_like, 2 << 30)["error"])

    def fail(*numbers):
        raise ValueError(str(numbers[1]))

    attach(fail)
    return [*results, outcome(cuda, empty, torch_like, 3 << 30), seen, outcome(cuda, attach)["error"]]


def the_allocator(cuda, torch_like):
    cuda.init()
    c, stream = torch_like._C, cuda.Stream()
    address = c._cuda_cudaCachingAllocator_raw_alloc(1000, stream.cuda_stream)
    results = [cuda.memory_allocated(), [row["stream"] == stream.cuda_stream for row in cuda.memory_snapshot()]]
    results += [c._cuda_memoryStats(0) == cuda.memory_stats_as_nested_dict(), sorted(c._cuda_memorySnapshot(None))]
    c._cuda_cudaCachingAllocator_raw_delete(address)
    results += [cuda.memory_allocated(), c._cuda_setMemoryFraction(0.5, 0), c._cuda_getMemoryFraction(0)]
    results += [c._cuda_hostMemoryStats()["num_host_alloc"], c._cuda_isHistoryEnabled()]
    cuda.memory._record_memory_history()
    results.append(c._cuda_isHistoryEnabled())
    cuda.memory._record_memory_history(None)
    results += [c._cuda_isHistoryEnabled(), outcome(cuda, c._accelerator_setAllocatorSettings, "foo:1")["error"]]
    results.append(outcome(cuda, c._cuda_memoryStats, 9)["error"])
    return [*results, outcome(cuda, c._cuda_cudaCachingAllocator_raw_delete, 12345)]


def segments_of_one_pool(cuda, torch_like):
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        held = [empty(torch_like, 100)]
    held.append(empty(torch_like, 100))
    snapshot = torch_like._C._cuda_memorySnapshot
    return len(held), [len(snapshot(each)["segments"]) for each in (None, (0, 0), pool.id, (0, 99))]


def devices_and_streams(cuda, torch_like):
    c = torch_like._C
    cuda.init()
    stream = cuda.Stream()
    with cuda.stream(stream):
        results = [c._cuda_getCurrentStream(0), c._cuda_getDefaultStream(0), c._cuda_getCurrentStream(1)]
        results += [c._cuda_getCurrentRawStream(0) == stream.cuda_stream, c._cuda_getCurrentRawStream(1)]
    numbers = {"stream_id": stream.stream_id, "device_index": 0, "device_type": stream.device_type}
    results += [c._cuda_setStream(**numbers), cuda.current_stream() == stream]
    results += [outcome(cuda, c._cuda_getCurrentStream, 5), c._cuda_setDevice(1), c._cuda_getDevice()]
    results += [outcome(cuda, c._cuda_setDevice, "1"), outcome(cuda, c._cuda_setDevice, 7)["error"]]
    results += [c._cuda_exchangeDevice(0), c._cuda_maybeExchangeDevice(-1), cuda.current_device()]
    return [*results, c._cuda_canDeviceAccessPeer(0, 1), c._cuda_hasPrimaryContext(0)]


def the_flag_of_convolutions(cuda, torch_like):
    c = torch_like._C
    results = [c._cuda_get_conv_benchmark_empty_cache()]
    for value in (False, True):
        results += [c._cudnn_set_conv_benchmark_empty_cache(value), c._cuda_get_conv_benchmark_empty_cache()]
    return results


def objects_of_a_thread(cuda, torch_like):
    c, seen = torch_like._C, []
    results = [c._is_key_in_tls("key"), c._stash_obj_in_tls("key", [1]), c._is_key_in_tls("key")]
    results += [c._get_obj_in_tls("key"), outcome(cuda, c._get_obj_in_tls, "other")["error"]]
    other = threading.Thread(target=lambda: seen.append(c._is_key_in_tls("key")))
    other.start()
    other.join()
    return [*results, seen, c._remove_obj_from_tls("key"), c._is_key_in_tls("key"), c._remove_obj_from_tls("other")]


def cached_tensors(cuda, torch_like):
    c, tensor = torch_like._C, empty(torch_like, 10)
    results = [outcome(cuda, c._add_cached_tensor, tensor)["error"], c._is_cached_tensor(tensor)]
    results += [c._set_cached_tensors_enabled(True), c._add_cached_tensor(tensor), c._is_cached_tensor(tensor)]
    results += [c._is_cached_tensor(tensor[1:]), c._remove_cached_tensor(tensor), c._is_cached_tensor(tensor)]
    c._add_cached_tensor(tensor)
    c._set_cached_tensors_enabled(False)
    return [*results, c._is_cached_tensor(tensor), outcome(cuda, c._add_cached_tensor, 5)["error"]]
