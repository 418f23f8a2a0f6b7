"""The names of `torch.cuda`, over penstock's runtime: a list, and what only CUDA has. See docs/differences.md.

>>> import penstock, penstock.cuda as cuda
>>> with penstock.emulate("cuda", count=2, profile="h200"):
...     with cuda.device(1):
...         print(cuda.current_device(), cuda.get_device_name())
1 NVIDIA H200 (emulated)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.config import SANITIZER
from penstock.cuda import (
    _cudart,
    _device_limits,
    _gpu_trace,
    _sanitizer,
    amp,
    gds,
    graph_annotations,
    graphs,
    green_contexts,
    jiterator,
    memory,
    nccl,
    nvtx,
    profiler,
    random,
    sparse,
    streams,
    telemetry,
    tunable,
)
from penstock.cuda._kind import CUDA as _CUDA
from penstock.cuda._kind import DeferredCudaCallError
from penstock.cuda._libraries import _compile_kernel, current_blas_handle, current_solver_handle
from penstock.cuda._utils import _get_device_index
from penstock.cuda.capability import (
    DEVICE_REQUIREMENT,
    DEVICE_REQUIREMENT_POST_JETSON_SBSA_UNIFICATION,
    PYTORCH_RELEASES_CODE_CC,
    _check_bf16_tensor_supported,
    _check_capability,
    _check_cubins,
    _code_compatible_with_device,
    _CompatInterval,
    _CompatSet,
    _device_requirement,
    _extract_arch_version,
    _host_arch_key,
    _warn_unsupported_code,
    check_real_devices,
    get_arch_list,
    get_gencode_flags,
    has_half,
    has_magma,
    is_bf16_supported,
    is_tf32_supported,
)
from penstock.cuda.devices import (
    _CudaDeviceProperties,
    _DeviceGuard,
    _primary_context_devices,
    can_device_access_peer,
    device,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
)
from penstock.cuda.graphs import (
    CUDAGraph,
    export_dot,
    export_graph_data,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
    make_graphed_callables,
)
from penstock.cuda.green_contexts import GreenContext
from penstock.cuda.lifecycle import (
    _exchange_device,
    _is_compiled,
    _is_in_bad_fork,
    _lazy_call,
    _lazy_init,
    _LazySeedTracker,
    _maybe_exchange_device,
    _queued_calls,
    _sleep,
    current_device,
    device_count,
    get_sync_debug_mode,
    init,
    is_available,
    is_initialized,
    set_device,
    set_sync_debug_mode,
    synchronize,
)
from penstock.cuda.memory import (
    CUDAPluggableAllocator,
    MemPool,
    _use_uvm,
    caching_allocator_alloc,
    caching_allocator_delete,
    caching_allocator_disabled,
    caching_allocator_enable,
    change_current_allocator,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
    use_mem_pool,
)
from penstock.cuda.random import (
    _RANDOMS,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from penstock.cuda.random import generator as _get_generator
from penstock.cuda.random import get_offset as _get_rng_state_offset
from penstock.cuda.random import named as _get_device
from penstock.cuda.random import set_offset as _set_rng_state_offset
from penstock.cuda.runtime_api import AcceleratorError, CudaError, check_error, cudart, cudaStatus
from penstock.cuda.sparse import _register_triton_kernels, _WrappedTritonKernel
from penstock.cuda.streams import (
    Event,
    ExternalStream,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    get_stream_from_external,
    set_stream,
    stream,
)
from penstock.cuda.streams import set_stream_by_id as _set_stream_by_id
from penstock.cuda.telemetry import (
    _device_count_amdsmi,
    _device_count_nvml,
    _get_amdsmi_clock_rate,
    _get_amdsmi_device_index,
    _get_amdsmi_device_memory_used,
    _get_amdsmi_handler,
    _get_amdsmi_memory_usage,
    _get_amdsmi_power_draw,
    _get_amdsmi_temperature,
    _get_amdsmi_utilization,
    _get_nvml_device_index,
    _get_pynvml_handler,
    _nvml_based_avail,
    _parse_visible_devices,
    _raw_device_count_amdsmi,
    _raw_device_count_nvml,
    _raw_device_uuid_amdsmi,
    _raw_device_uuid_nvml,
    _transform_uuid_to_ordinals,
    clock_rate,
    device_memory_used,
    list_gpu_processes,
    memory_usage,
    power_draw,
    temperature,
    utilization,
)
from penstock.errors import OutOfMemory as OutOfMemoryError

if TYPE_CHECKING:
    from penstock.runtime.generator import Generator

    default_generators: tuple[Generator, ...]

__all__ = [
    "DEVICE_REQUIREMENT",
    "DEVICE_REQUIREMENT_POST_JETSON_SBSA_UNIFICATION",
    "PYTORCH_RELEASES_CODE_CC",
    "AcceleratorError",
    "CUDAGraph",
    "CUDAPluggableAllocator",
    "CudaError",
    "DeferredCudaCallError",
    "Event",
    "ExternalStream",
    "GreenContext",
    "MemPool",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "amp",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_allocator_disabled",
    "caching_allocator_enable",
    "can_device_access_peer",
    "change_current_allocator",
    "check_error",
    "clock_rate",
    "cudaStatus",
    "cudart",
    "current_blas_handle",
    "current_device",
    "current_solver_handle",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "empty_cache",
    "export_dot",
    "export_graph_data",
    "gds",
    "get_allocator_backend",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_gencode_flags",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_stream_from_external",
    "get_sync_debug_mode",
    "graph",
    "graph_annotations",
    "graph_pool_handle",
    "graphs",
    "green_contexts",
    "has_half",
    "has_magma",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "jiterator",
    "list_gpu_processes",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "memory_usage",
    "nccl",
    "nvtx",
    "power_draw",
    "profiler",
    "random",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "sparse",
    "stream",
    "streams",
    "synchronize",
    "temperature",
    "tunable",
    "use_mem_pool",
    "utilization",
]

_CUDA.initialisation.call(check_real_devices)  # as PyTorch: at the first use

if SANITIZER.value():
    _sanitizer.enable_cuda_sanitizer()

# What is another thing each time it is asked for.
_CHANGING: dict[str, Callable[[], Any]] = {
    "default_generators": _RANDOMS.default_generators,
    "_initialized": lambda: _CUDA.initialisation.done,
    "_initialization_lock": lambda: _CUDA.initialisation.lock,
    "_tls": lambda: _CUDA.initialisation.here,
    "_lazy_seed_tracker": lambda: _CUDA.initialisation.seeds,
    "_cached_device_count": lambda: _CUDA.count() if _CUDA.initialised else None,
    **telemetry.LIBRARIES,
}


def __getattr__(name: str) -> Any:
    if name in _CHANGING:
        return _CHANGING[name]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
