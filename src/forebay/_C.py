"""Private names of PyTorch that libraries use, such as `torch._C._cuda_getCheckpointState`.

The names that concern the runtime: memory pools and their checkpoints, storages, statistics, streams, devices. Wrong
arguments raise the errors of the public function that does the same, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from importlib import import_module
from typing import Any

from forebay import accelerator, cuda
from forebay._base.device_spec import Device
from forebay.cuda import devices, graphs, lifecycle, memory, streams
from forebay.cuda._kind import CUDA
from forebay.errors import ForebayError
from forebay.names import c_functions, oom_observers, storage_functions
from forebay.names.inductor_state import CachedTensors, ConvolutionFlag, ThreadObjects
from forebay.names.torch_backends import cuda as cuda_settings
from forebay.names.torch_backends import cudnn, flags
from forebay.runtime.devices import current, open_device
from forebay.runtime.history.annotations import metadata
from forebay.runtime.memory.pool_checkpoint import PoolCheckpoint
from forebay.runtime.random.generator import Generator, default_generator
from forebay.runtime.settings import process_settings
from forebay.runtime.streams import sync_debug
from forebay.runtime.streams.stream import Stream, current_stream_for, default_stream_for

# Private pools
_cuda_CUDAAllocator_AllocatorState = PoolCheckpoint
_cuda_beginAllocateCurrentStreamToPool = memory._cuda_beginAllocateCurrentStreamToPool
_cuda_beginAllocateCurrentThreadToPool = memory._cuda_beginAllocateCurrentThreadToPool
_cuda_beginAllocateToPool = memory._cuda_beginAllocateToPool
_cuda_checkPoolLiveAllocations = memory._POOLS.check_pool_live_allocations
_cuda_endAllocateToPool = memory._cuda_endAllocateToPool
_cuda_getCheckpointState = memory._POOLS.get_checkpoint_state
_cuda_releasePool = memory._cuda_releasePool
_cuda_setCheckpointPoolState = memory._POOLS.set_checkpoint_pool_state
_MemPool = memory.MemPool
_graph_pool_handle = graphs.graph_pool_handle

# Storages
_storages = storage_functions.StorageFunctions(CUDA)
_clear_storage_data_ptr_access_error_msg = storage_functions.clear_data_ptr_access_error
_construct_CUDA_Tensor_From_Storage_And_Metadata = _storages.construct_tensor
_construct_storage_from_data_pointer = storage_functions.construct_storage
_free_And_Remove_DeleterFn = _storages.free_and_remove_deleter
_has_Standard_Deleter = _storages.has_standard_deleter
_set_storage_access_error_msg = storage_functions.set_tensor_access_error
_set_storage_data_ptr_access_error_msg = storage_functions.set_data_ptr_access_error
_storage_Use_Count = storage_functions.use_count
_storage_throw_on_immutable_data_ptr = storage_functions.is_access_forbidden
_storage_throw_on_mutable_data_ptr = storage_functions.is_mutable_access_forbidden
_tensors_data_ptrs_at_indices_equal = storage_functions.data_ptrs_equal

# What Inductor's cudagraph trees remember
_convolutions, _thread_objects, _cached_tensors = ConvolutionFlag(), ThreadObjects(), CachedTensors()
_cuda_get_conv_benchmark_empty_cache = _convolutions.get
_cudnn_set_conv_benchmark_empty_cache = _convolutions.set
_get_obj_in_tls = _thread_objects.get
_is_key_in_tls = _thread_objects.has
_remove_obj_from_tls = _thread_objects.remove
_stash_obj_in_tls = _thread_objects.stash
_add_cached_tensor = _cached_tensors.add
_is_cached_tensor = _cached_tensors.has
_remove_cached_tensor = _cached_tensors.remove
_set_cached_tensors_enabled = _cached_tensors.enable

# Settings of kernels, which have no effect
_get_cublas_allow_fp16_accumulation, _set_cublas_allow_fp16_accumulation = flags.accessors(
    cuda_settings.matmul, "allow_fp16_accumulation", "set_allow_fp16_accumulation_cublas"
)
_get_cublas_allow_tf32, _set_cublas_allow_tf32 = flags.accessors(
    cuda_settings.matmul, "allow_tf32", "set_allow_tf32_cublas"
)
_get_cublas_allow_bf16_reduced_precision_reduction = flags.get_bf16_reduction
_get_cublas_allow_fp16_reduced_precision_reduction = flags.get_fp16_reduction
_set_cublas_allow_bf16_reduced_precision_reduction = flags.set_bf16_reduction
_set_cublas_allow_fp16_reduced_precision_reduction = flags.set_fp16_reduction
_get_cudnn_allow_tf32, _set_cudnn_allow_tf32 = flags.accessors(cudnn, "allow_tf32", "set_allow_tf32_cublas")
_get_cudnn_benchmark, _set_cudnn_benchmark = flags.accessors(cudnn, "benchmark", "set_benchmark_cudnn")
_get_cudnn_deterministic, _set_cudnn_deterministic = flags.accessors(cudnn, "deterministic", "set_deterministic_cudnn")
_get_cudnn_enabled, _set_cudnn_enabled = flags.accessors(cudnn, "enabled", "set_enabled_cudnn")
_cuda_set_cudnn_benchmark_limit = flags.set_benchmark_limit


def _cuda_get_cudnn_benchmark_limit() -> int:
    return cudnn.benchmark_limit


# The allocator
_accelerator_setAllocatorSettings = process_settings.apply
_cuda_cudaCachingAllocator_enable = memory.caching_allocator_enable
_cuda_cudaCachingAllocator_raw_delete = memory.caching_allocator_delete
_cuda_cudaHostAllocator = memory._host_allocator
_cuda_emptyCache = memory.empty_cache
_cuda_getAllocatorBackend = memory.get_allocator_backend
_cuda_getMemoryFraction = memory.get_per_process_memory_fraction
_cuda_getMemoryMetadata = metadata
_cuda_hostMemoryStats = memory.host_memory_stats_as_nested_dict
_cuda_memoryMetadataSupported = memory._memory_metadata_supported
_cuda_memoryStats = memory.memory_stats_as_nested_dict
_cuda_record_memory_history = memory._record_memory_history_impl
_cuda_resetAccumulatedHostMemoryStats = memory.reset_accumulated_host_memory_stats
_cuda_resetAccumulatedMemoryStats = memory.reset_accumulated_memory_stats
_cuda_resetPeakHostMemoryStats = memory.reset_peak_host_memory_stats
_cuda_resetPeakMemoryStats = memory.reset_peak_memory_stats
_cuda_setMemoryMetadata = memory._set_memory_metadata
_host_emptyCache = accelerator.memory.empty_host_cache


def _accelerator_getDeviceStats(device_index: int) -> dict[str, Any]:
    return memory.memory_stats_as_nested_dict(device_index)


def _accelerator_getDefaultGenerator(device_index: int) -> Generator:
    return default_generator(Device(current.accelerator_kind() or "cpu", device_index))


def _accelerator_isAllocatorInitialized() -> bool:
    used = accelerator.current_accelerator()
    if used is not None and used.type == CUDA.name:
        return cuda.is_initialized()
    return used is not None and bool(open_device.open_devices(used.type).devices)


def _cuda_attach_out_of_memory_observer(observer: Callable[[int, int, int, int], object]) -> None:
    """Register a function that is called before OutOfMemory is raised on any CUDA device."""
    oom_observers.attach(CUDA, observer)


def _cuda_clearCublasWorkspaces() -> None:
    """Do nothing: there are no workspaces of cuBLAS."""


def _cuda_cudaCachingAllocator_is_enabled() -> bool:
    return process_settings.caching


def _cuda_cudaCachingAllocator_raw_alloc(size: int, cuda_stream: int) -> int:
    return memory.caching_allocator_alloc(size, stream=cuda_stream)


def _cuda_isHistoryEnabled() -> bool:
    return any(allocator.program_records for allocator in open_device.open_devices(CUDA.name).native)


def _cuda_memorySnapshot(mempool_id: tuple[Any, ...] | None) -> dict[str, Any]:
    found = memory._snapshot()
    if mempool_id is not None and any(mempool_id):
        pool = (mempool_id[0], mempool_id[1])
        found["segments"] = [row for row in found["segments"] if row["segment_pool_id"] == pool]
    return found


def _cuda_setMemoryFraction(fraction: float, device: int) -> None:
    memory.set_per_process_memory_fraction(fraction, device)


# Devices, streams, events and graphs
def _activate_gpu_trace() -> None:
    """Do nothing: callbacks of `torch.cuda._gpu_trace` are called from their registration on."""


_CUDAGraph = graphs.CUDAGraph
_CudaEventBase = streams.Event
_CudaStreamBase = streams.Stream
_cuda_canDeviceAccessPeer = cuda.can_device_access_peer
_accelerator_exchangeDevice = _cuda_exchangeDevice = lifecycle._exchange_device
_cuda_getDevice = cuda.current_device
_cuda_getDeviceCount = cuda.device_count
_cuda_init = cuda.init
_cuda_ipc_collect = cuda.ipc_collect
_cuda_isCurrentStreamCapturing = graphs.is_current_stream_capturing
_cuda_isInBadFork = lifecycle._is_in_bad_fork
_accelerator_maybeExchangeDevice = _cuda_maybeExchangeDevice = lifecycle._maybe_exchange_device
_cuda_setStream = streams.set_stream_by_id
_cuda_set_sync_debug_mode = cuda.set_sync_debug_mode
_cuda_sleep = lifecycle._sleep
_cuda_synchronize = cuda.synchronize


def _cuda_getCurrentRawStream(device: int) -> int:
    return current_stream_for(CUDA.open_device_for_stream(device, "getCurrentStream")).handle


def _cuda_getCurrentStream(device: int) -> tuple[int, int, int]:
    return _numbers_of(current_stream_for(CUDA.open_device_for_stream(device, "getCurrentStream")))


def _cuda_getDefaultStream(device: int) -> tuple[int, int, int]:
    return _numbers_of(default_stream_for(CUDA.open_device_for_stream(device, "getDefaultStream")))


def _cuda_get_sync_debug_mode() -> int:
    return sync_debug.mode


def _cuda_hasPrimaryContext(device: int) -> bool:
    return device in devices._primary_context_devices()


def _cuda_setDevice(device: int) -> None:
    if not isinstance(device, int):
        raise ForebayError("invalid argument to setDevice")
    cuda.set_device(device)


def _numbers_of(stream: Stream) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, stream.device_type


def __getattr__(name: str) -> Any:
    """Return the public function that a function of `torch._C` is."""
    if (path := c_functions.PATHS.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kind, *rest = path.split(".")
    return reduce(getattr, rest, import_module(f"forebay.{kind}"))
