"""What initialises CUDA and what does not, what waits for that, and seeds that come before."""

from __future__ import annotations

import os

from support.on_oracle import outcome

FRESH_PROCESS = True


def said_by_child(work):
    """What it gives in a forked child, as text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, work().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def what_initialises(cuda, torch_like):
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


def the_current_device_does(cuda, torch_like):
    return cuda.is_initialized(), cuda.current_device(), cuda.is_initialized()


def a_tensor_does(cuda, torch_like):
    torch_like.empty(1, device="cuda:1")
    return cuda.is_initialized()


def init_twice(cuda, torch_like):
    return cuda.init(), cuda.init(), cuda.is_initialized(), cuda._initialized


def calls_wait_for_it(cuda, torch_like):
    seen = []
    cuda._lazy_call(lambda: seen.append("first"))
    cuda._lazy_call(lambda: seen.append(cuda.current_device()))
    before = list(seen)
    cuda.init()
    cuda._lazy_call(lambda: seen.append("at once"))
    return before, seen


def a_call_that_fails(cuda, torch_like):
    attempts = []

    def fail():
        attempts.append(cuda._initialized)
        raise KeyError("no")

    cuda._lazy_call(fail)
    first, second = outcome(cuda, cuda.init), outcome(cuda, cuda.current_device)
    lines = first["says"].splitlines()
    return first["error"], second["error"], lines[:4], "a_call_that_fails" in first["says"], attempts, cuda._initialized


def a_call_may_use_the_device(cuda, torch_like):
    seen = []
    cuda._lazy_call(lambda: seen.append((cuda.current_device(), cuda._tls.is_initializing, cuda._initialized)))
    cuda.init()
    return seen


def seeds_before(cuda, torch_like):
    cuda.manual_seed_all(3)
    cuda.manual_seed(5)
    before = cuda.is_initialized()
    return before, cuda.initial_seed(), cuda.get_rng_state(1).tolist()[:4]


def the_later_seed_counts(cuda, torch_like):
    cuda.manual_seed(5)
    cuda.manual_seed_all(3)
    return cuda.initial_seed(), cuda.get_rng_state(1).tolist()[:4]


def only_the_last_of_each_counts(cuda, torch_like):
    for seed in (1, 2, 3):
        cuda.manual_seed(seed)
    return len(cuda._lazy_seed_tracker.get_calls()), cuda.initial_seed()


def a_state_before(cuda, torch_like):
    state = torch_like.tensor([7] + [0] * 7 + [8] + [0] * 7, dtype=torch_like.uint8)
    cuda.set_rng_state(state)
    return cuda.is_initialized(), cuda.initial_seed(), cuda._get_rng_state_offset()


def forking_after_it(cuda, torch_like):
    """What a child says that uses CUDA after its parent did."""
    cuda.init()

    def use():
        found = outcome(cuda, cuda.current_device)
        said = found["error"] + "|" + found["says"].splitlines()[0]
        return f"{said}|{cuda._is_in_bad_fork()} {cuda.is_initialized()}"

    return said_by_child(use), cuda._is_in_bad_fork()


def forking_before_it(cuda, torch_like):
    """Counting and seeding spoil nothing for a child."""
    cuda.manual_seed(4)
    return said_by_child(lambda: f"{cuda._is_in_bad_fork()} {cuda.initial_seed()}"), cuda.is_initialized()


def forking_and_asking_for_a_state(cuda, torch_like):
    """The generator's state is a use like any other, on whatever device is current."""
    cuda.set_device(0)
    cuda.get_rng_state()
    return said_by_child(lambda: outcome(cuda, cuda.get_rng_state)["error"])


def choosing_a_device_late(cuda, torch_like):
    """Another device was used before."""
    os.environ["TORCH_CUDA_CHECK_STRAY_CONTEXT"] = "Error"
    try:
        cuda.set_device(1)
        torch_like.empty(1, device="cuda:1")
        quiet = cuda.set_device(1)
        found = outcome(cuda, cuda.set_device, 0)
        return quiet, found["error"], "on device(s) [1]" in found["says"], cuda.current_device()
    finally:
        del os.environ["TORCH_CUDA_CHECK_STRAY_CONTEXT"]
