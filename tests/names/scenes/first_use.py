"""Initialisation of CUDA: what triggers it, queued calls, seeds set before it, forks."""

from __future__ import annotations

import os

from support.on_oracle import outcome

FRESH_PROCESS = True


def result_in_child(work):
    """Run `work` in a forked child and return its result, a string."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write_end, work().encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


def calls_that_initialise(cuda, torch_like):
    steps = {
        "counting": cuda.device_count,
        "available": cuda.is_available,
        "allocated": cuda.memory_allocated,
        "cache": cuda.empty_cache,
        "event": cuda.Event,
        "seed": lambda: cuda.manual_seed(3),
        "state of all": cuda.get_rng_state_all,
    }
    seen = {}
    for name, step in steps.items():
        step()
        seen[name] = cuda.is_initialized()
    return seen


def current_device_initialises(cuda, torch_like):
    return cuda.is_initialized(), cuda.current_device(), cuda.is_initialized()


def tensor_initialises(cuda, torch_like):
    torch_like.empty(1, device="cuda:1")
    return cuda.is_initialized()


def repeated_init(cuda, torch_like):
    return cuda.init(), cuda.init(), cuda.is_initialized(), cuda._initialized


def queued_calls_run_at_initialisation(cuda, torch_like):
    seen = []
    cuda._lazy_call(lambda: seen.append("first"))
    cuda._lazy_call(lambda: seen.append(cuda.current_device()))
    before = list(seen)
    cuda.init()
    cuda._lazy_call(lambda: seen.append("at once"))
    return before, seen


def failing_queued_call(cuda, torch_like):
    attempts = []

    def fail():
        attempts.append(cuda._initialized)
        raise KeyError("no")

    cuda._lazy_call(fail)
    first, second = outcome(cuda, cuda.init), outcome(cuda, cuda.current_device)
    lines = first["message"].splitlines()
    return (
        first["error"],
        second["error"],
        lines[:4],
        "failing_queued_call" in first["message"],
        attempts,
        cuda._initialized,
    )


def queued_call_uses_the_device(cuda, torch_like):
    seen = []
    cuda._lazy_call(lambda: seen.append((cuda.current_device(), cuda._tls.is_initializing, cuda._initialized)))
    cuda.init()
    return seen


def seeds_before_initialisation(cuda, torch_like):
    cuda.manual_seed_all(3)
    cuda.manual_seed(5)
    before = cuda.is_initialized()
    return before, cuda.initial_seed(), cuda.get_rng_state(1).tolist()[:4]


def last_seed_wins(cuda, torch_like):
    cuda.manual_seed(5)
    cuda.manual_seed_all(3)
    return cuda.initial_seed(), cuda.get_rng_state(1).tolist()[:4]


def only_the_last_seed_of_each_kind_counts(cuda, torch_like):
    for seed in (1, 2, 3):
        cuda.manual_seed(seed)
    return len(cuda._lazy_seed_tracker.get_calls()), cuda.initial_seed()


def state_set_before_initialisation(cuda, torch_like):
    state = torch_like.tensor([7] + [0] * 7 + [8] + [0] * 7, dtype=torch_like.uint8)
    cuda.set_rng_state(state)
    return cuda.is_initialized(), cuda.initial_seed(), cuda._get_rng_state_offset()


def forking_after_initialisation(cuda, torch_like):
    """A child uses CUDA after its parent did."""
    cuda.init()

    def use():
        found = outcome(cuda, cuda.current_device)
        error = found["error"] + "|" + found["message"].splitlines()[0]
        return f"{error}|{cuda._is_in_bad_fork()} {cuda.is_initialized()}"

    return result_in_child(use), cuda._is_in_bad_fork()


def forking_before_initialisation(cuda, torch_like):
    """The parent has only seeded, which does not prevent use in a child."""
    cuda.manual_seed(4)
    return result_in_child(lambda: f"{cuda._is_in_bad_fork()} {cuda.initial_seed()}"), cuda.is_initialized()


def forking_and_reading_the_state(cuda, torch_like):
    """Reading the state of a generator is a use of CUDA, whatever device is current."""
    cuda.set_device(0)
    cuda.get_rng_state()
    return result_in_child(lambda: outcome(cuda, cuda.get_rng_state)["error"])


def set_device_before_initialisation(cuda, torch_like):
    """Another device was used before, which the stray-context check reports."""
    os.environ["TORCH_CUDA_CHECK_STRAY_CONTEXT"] = "Error"
    try:
        cuda.set_device(1)
        torch_like.empty(1, device="cuda:1")
        quiet = cuda.set_device(1)
        found = outcome(cuda, cuda.set_device, 0)
        return quiet, found["error"], "on device(s) [1]" in found["message"], cuda.current_device()
    finally:
        del os.environ["TORCH_CUDA_CHECK_STRAY_CONTEXT"]
