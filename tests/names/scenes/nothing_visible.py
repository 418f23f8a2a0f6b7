"""A process without visible devices."""

from __future__ import annotations

from support.on_oracle import outcome

ENVIRON = {"CUDA_VISIBLE_DEVICES": "", "FAKE_CUDA_DEVICES": "0"}  # the second is for the oracle's stand-in


def use_of_the_device(cuda, torch_like):
    uses = (cuda.init, cuda.current_device, cuda.synchronize, lambda: torch_like.empty(1, device="cuda"))
    results = [outcome(cuda, use) for use in uses]
    first = [(each["error"], "No CUDA GPUs are available" in each["message"]) for each in results]
    return first, cuda.is_initialized(), cuda.device_count(), cuda.is_available(), cuda.get_rng_state_all()


def memory_queries(cuda, torch_like):
    return cuda.memory_allocated(), dict(cuda.memory_stats()), cuda.memory_snapshot(), cuda.empty_cache()


def seeding(cuda, torch_like):
    return cuda.manual_seed(3), cuda.manual_seed_all(4), cuda.default_generators
