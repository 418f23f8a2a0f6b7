"""A process that starts with an invalid settings variable."""

from __future__ import annotations

from support.on_oracle import outcome

ENVIRON = {"PYTORCH_CUDA_ALLOC_CONF": "foo:bar"}


def initialisation_raises(cuda, torch_like):
    return outcome(cuda, cuda.init), cuda.is_initialized()


def queued_calls_do_not_run(cuda, torch_like):
    called = []
    cuda._lazy_call(lambda: called.append(1))
    return outcome(cuda, cuda.synchronize), called


def first_uses_raise(cuda, torch_like):
    return outcome(cuda, torch_like.empty, 1, device="cuda"), cuda.is_initialized()


def current_device_raises(cuda, torch_like):
    return outcome(cuda, cuda.current_device), cuda.device_count(), cuda.is_available()


def memory_information_raises(cuda, torch_like):
    return outcome(cuda, cuda.mem_get_info)


def recording_raises(cuda, torch_like):
    return outcome(cuda, cuda.memory._record_memory_history), cuda.is_initialized()


def snapshot_raises(cuda, torch_like):
    return outcome(cuda, cuda.memory._snapshot), cuda.is_initialized()


def snapshot_of_a_pool_raises(cuda, torch_like):
    return outcome(cuda, cuda.memory_snapshot)


def changing_the_settings_raises(cuda, torch_like):
    found = outcome(cuda, cuda.memory._set_allocator_settings, "max_split_size_mb:50")
    return found["error"], found["message"]


def queries_do_not_read_the_settings(cuda, torch_like):
    cuda.manual_seed(3)
    queries = (
        cuda.memory_stats, cuda.memory_allocated, cuda.empty_cache, cuda.get_allocator_backend, cuda.host_memory_stats,
        cuda.memory._get_memory_metadata, cuda.memory._memory_metadata_supported, cuda.reset_peak_host_memory_stats,
    )  # fmt: skip
    return [outcome(cuda, query) for query in queries], cuda.is_initialized()
