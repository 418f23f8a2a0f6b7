"""Memory management of CUDA devices (`torch.cuda.memory`).

Statistics do not initialise CUDA; before its first use they are 0 or empty. Sizes are bytes; `device` is an index, a
device, its name, or None for the current one.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Final

from forebay.cuda._kind import CUDA
from forebay.cuda.telemetry import list_gpu_processes
from forebay.names.memory_blocks import AllocatorHandle, CachingAllocatorFunctions, KindMemPool, PluggableAllocator
from forebay.names.memory_history import MemoryHistory
from forebay.names.memory_statistics import MemoryStatistics
from forebay.names.memory_statistics import flatten as _recurse_add_to_result
from forebay.names.private_pools import PrivatePoolFunctions
from forebay.runtime.history.annotations import metadata as _get_memory_metadata

__all__ = [
    "CUDAPluggableAllocator",
    "MemPool",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_allocator_disabled",
    "caching_allocator_enable",
    "change_current_allocator",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "list_gpu_processes",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "peak",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "use_mem_pool",
]


class MemPool(KindMemPool):
    """A private memory pool: it shares no cached blocks with other allocations.

    As `torch.cuda.MemPool`. Initialises CUDA.

    Parameters
    ----------
    allocator : object, optional
        The source of the pool's segments, `CUDAPluggableAllocator(...).allocator()`; the device by default.
    use_on_oom : bool, default False
        Allow other allocations to use the pool's free memory before they raise OutOfMemory.
    no_split : bool, default False
        Do not split the pool's blocks.

    Raises
    ------
    TypeError
        If `allocator` is not an allocator, or a flag is not a bool.
    RuntimeError
        If there is no CUDA device.
    Unsupported
        If a pluggable allocator is the device's current one.

    Examples
    --------
    >>> import forebay, forebay.cuda.memory as memory
    >>> with forebay.emulate("cuda"):
    ...     pool = memory.MemPool()
    ...     with memory.use_mem_pool(pool):
    ...         tensor = forebay.zeros(1000, device="cuda")
    ...     [segment["allocated_size"] for segment in pool.snapshot()]
    [4096]
    """

    kind = CUDA


class _CUDAAllocator(AllocatorHandle):
    __doc__ = AllocatorHandle.__doc__


class CUDAPluggableAllocator(PluggableAllocator, _CUDAAllocator):
    __doc__ = PluggableAllocator.__doc__


_STATISTICS = MemoryStatistics(CUDA)
memory_stats: Final = _STATISTICS.memory_stats
memory_stats_as_nested_dict: Final = _STATISTICS.memory_stats_as_nested_dict
memory_allocated: Final = _STATISTICS.memory_allocated
max_memory_allocated: Final = _STATISTICS.max_memory_allocated
memory_reserved: Final = _STATISTICS.memory_reserved
max_memory_reserved: Final = _STATISTICS.max_memory_reserved
memory_cached: Final = _STATISTICS.memory_cached
max_memory_cached: Final = _STATISTICS.max_memory_cached
memory_summary: Final = _STATISTICS.memory_summary
reset_peak_memory_stats: Final = _STATISTICS.reset_peak_memory_stats
reset_accumulated_memory_stats: Final = _STATISTICS.reset_accumulated_memory_stats
reset_max_memory_allocated: Final = _STATISTICS.reset_max_memory_allocated
reset_max_memory_cached: Final = _STATISTICS.reset_max_memory_cached
host_memory_stats: Final = _STATISTICS.host_memory_stats
host_memory_stats_as_nested_dict: Final = _STATISTICS.host_memory_stats_as_nested_dict
reset_peak_host_memory_stats: Final = _STATISTICS.reset_peak_host_memory_stats
reset_accumulated_host_memory_stats: Final = _STATISTICS.reset_accumulated_host_memory_stats
peak: Final = _STATISTICS.peak
mem_get_info: Final = _STATISTICS.mem_get_info
empty_cache: Final = _STATISTICS.empty_cache
set_per_process_memory_fraction: Final = _STATISTICS.set_per_process_memory_fraction
get_per_process_memory_fraction: Final = _STATISTICS.get_per_process_memory_fraction
_set_allocator_settings = _STATISTICS.set_allocator_settings

_BLOCKS = CachingAllocatorFunctions(CUDA, MemPool, _CUDAAllocator)
caching_allocator_alloc: Final = _BLOCKS.caching_allocator_alloc
caching_allocator_delete: Final = _BLOCKS.caching_allocator_delete
caching_allocator_enable: Final = _BLOCKS.caching_allocator_enable
caching_allocator_disabled: Final = _BLOCKS.caching_allocator_disabled
use_mem_pool: Final = _BLOCKS.use_mem_pool
get_allocator_backend: Final = _BLOCKS.get_allocator_backend
change_current_allocator: Final = _BLOCKS.change_current_allocator
_get_current_allocator = _BLOCKS.current_allocator
_use_uvm = _BLOCKS.use_uvm
_host_allocator = _BLOCKS.host_allocator
_free_mutex = _BLOCKS.free_mutex

_POOLS = PrivatePoolFunctions(CUDA)
_cuda_beginAllocateCurrentStreamToPool = _POOLS.begin_allocate_current_stream_to_pool
_cuda_beginAllocateCurrentThreadToPool = _POOLS.begin_allocate_current_thread_to_pool
_cuda_beginAllocateToPool = _POOLS.begin_allocate_to_pool
_cuda_endAllocateToPool = _POOLS.end_allocate_to_pool
_cuda_releasePool = _POOLS.release_pool

_HISTORY = MemoryHistory(CUDA)
memory_snapshot: Final = _HISTORY.memory_snapshot
_record_memory_history_impl = _HISTORY.record
_record_memory_history_legacy = _HISTORY.record_legacy
_snapshot = _HISTORY.snapshot
_dump_snapshot = _HISTORY.dump
_save_segment_usage = _HISTORY.save_segment_usage
_save_memory_usage = _HISTORY.save_memory_usage
_allocation_traceback = _HISTORY.allocation_traceback
_memory_metadata_supported = _HISTORY.metadata_supported
_set_memory_metadata = _HISTORY.set_metadata
_annotate_tensor = _HISTORY.annotate


@wraps(_record_memory_history_impl, assigned=("__doc__",), updated=())
def _record_memory_history(enabled: Any = "all", *args: Any, **kwargs: Any) -> None:
    (_record_memory_history_legacy if isinstance(enabled, bool) else _record_memory_history_impl)(
        enabled, *args, **kwargs
    )
