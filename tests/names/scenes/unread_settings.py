"""A process whose settings select the backend cudaMallocAsync, which reads no other key, and contain an invalid key."""

from __future__ import annotations

import warnings

from support.on_oracle import outcome

ENVIRON = {"PYTORCH_CUDA_ALLOC_CONF": "nonsense:1,backend:cudaMallocAsync"}


def result(cuda, call, *arguments, **named):
    """Return the outcome without warnings: forebay's says that it uses its native allocator."""
    found = outcome(cuda, call, *arguments, **named)
    found.pop("warns", None)
    return found


def device_memory_does_not_read_them(cuda, torch_like):
    found = [result(cuda, cuda.init), result(cuda, torch_like.empty, 10, device="cuda")]
    address = cuda.caching_allocator_alloc(100)
    cuda.caching_allocator_delete(address)
    return [*found, result(cuda, cuda.empty_cache), result(cuda, cuda.mem_get_info)]


def queued_calls_run(cuda, torch_like):
    called = []
    cuda._lazy_call(lambda: called.append(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cuda.synchronize()
    return called, cuda.is_initialized()


def pinned_memory_reads_them(cuda, torch_like):
    return result(cuda, torch_like.empty, 10, pin_memory=True), cuda.device_count()


def pinned_memory_reads_them_later(cuda, torch_like):
    return result(cuda, torch_like.empty, 10, device="cuda"), result(cuda, torch_like.empty, 10, pin_memory=True)


def changing_the_settings_reads_them(cuda, torch_like):
    return result(cuda, cuda.memory._set_allocator_settings, "expandable_segments:False")
