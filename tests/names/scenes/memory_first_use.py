"""Memory functions before the first use of CUDA, and which of them initialise it."""

from __future__ import annotations

from support.on_oracle import outcome

FRESH_PROCESS = True


def queries_do_not_initialise(cuda, torch_like):
    queries = [
        (cuda.memory_stats,), (cuda.memory_stats, 99), (cuda.memory_stats, "cpu"), (cuda.memory_stats_as_nested_dict,),
        (cuda.memory_allocated,), (cuda.max_memory_allocated, 99), (cuda.memory_reserved,), (cuda.max_memory_reserved,),
        (cuda.memory_snapshot,), (cuda.memory_snapshot, (0, 1)), (cuda.host_memory_stats_as_nested_dict,),
        (cuda.empty_cache,), (cuda.get_allocator_backend,), (cuda.memory_cached,), (cuda.max_memory_cached,),
        (cuda.memory._allocation_traceback, 1234), (cuda.memory._memory_metadata_supported,),
        (cuda.memory._get_memory_metadata,), (cuda.caching_allocator_delete, 0), (cuda.caching_allocator_enable, False),
        (cuda.caching_allocator_enable, "x"),
    ]  # fmt: skip
    return [outcome(cuda, call, *arguments) for call, *arguments in queries], cuda.is_initialized()


def empty_snapshot(cuda, torch_like):
    snapshot = cuda.memory._snapshot()
    settings = snapshot.pop("allocator_settings")
    return snapshot, sorted(settings), cuda.is_initialized()


def resets_of_the_current_device_initialise(cuda, torch_like):
    return outcome(cuda, cuda.reset_peak_memory_stats), cuda.is_initialized()


def resets_by_index_do_not_initialise(cuda, torch_like):
    return outcome(cuda, cuda.reset_accumulated_memory_stats, 99)["error"], cuda.is_initialized()


def summary_of_the_current_device(cuda, torch_like):
    return cuda.memory_summary().count("\n"), cuda.memory_summary(abbreviated=True).count("\n")


def fraction_initialises_before_validation(cuda, torch_like):
    return outcome(cuda, cuda.set_per_process_memory_fraction, 1), cuda.is_initialized()


def recording_arguments_are_checked_first(cuda, torch_like):
    record = cuda.memory._record_memory_history
    wrong = [
        (("foo",), {}), (("all", "foo"), {}), (("all", "all", "foo"), {}),
        ((None,), {"record_pinned_host_memory": True}),
        (("all",), {"skip_actions": ["x"]}), ((True,), {"skip_actions": ["x"]}),
        ((False,), {"record_pinned_host_memory": True}),
    ]  # fmt: skip
    return [outcome(cuda, record, *arguments, **named) for arguments, named in wrong]


def mem_get_info_initialises(cuda, torch_like):
    return cuda.mem_get_info(1), cuda.is_initialized(), cuda.current_device()


def allocating_initialises(cuda, torch_like):
    return cuda.caching_allocator_alloc(0), cuda.is_initialized()


def metadata_does_not_initialise(cuda, torch_like):
    memory = cuda.memory
    memory._set_memory_metadata({"step": 1, "of": ["a", None]})
    first = memory._get_memory_metadata()
    memory._set_memory_metadata("")
    return first, memory._get_memory_metadata(), outcome(cuda, memory._set_memory_metadata, 5)["error"]


def invalid_library(cuda, torch_like):
    found = outcome(cuda, cuda.memory.CUDAPluggableAllocator, "/nowhere.so", "a", "b")
    return found["error"], found["message"]
