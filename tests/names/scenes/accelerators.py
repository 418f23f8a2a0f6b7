"""torch.accelerator, which is CUDA here."""

from __future__ import annotations

from support.on_oracle import outcome

FRESH_PROCESS = True  # some scenes query the state before first use


def state_before_the_first_use(cuda, torch_like):
    accelerator = torch_like.accelerator
    known = [
        str(accelerator.current_accelerator()),
        str(accelerator.current_accelerator(True)),
        accelerator.device_count(),
        accelerator.is_available(),
    ]
    memory = [
        accelerator.memory_allocated(),
        dict(accelerator.memory_stats()),
        accelerator.empty_cache(),
        accelerator.empty_host_cache(),
    ]
    return known, memory, cuda.is_initialized(), accelerator.current_device_index(), cuda.is_initialized()


def current_device(cuda, torch_like):
    accelerator = torch_like.accelerator
    seen = []
    for device in (1, "cuda:0", torch_like.device("cuda:1"), -1):
        accelerator.set_device_index(device)
        seen.append((accelerator.current_device_index(), cuda.current_device()))
    return seen, outcome(cuda, accelerator.current_device_idx), outcome(cuda, accelerator.set_device_idx, 0)


def invalid_devices(cuda, torch_like):
    accelerator = torch_like.accelerator
    results = [outcome(cuda, accelerator.set_device_index, device) for device in ("cpu", "mps:0", None, "cuda")]
    index = [
        outcome(cuda, accelerator._utils._get_device_index, *arguments)
        for arguments in ((1.5,), (1.5, True), ("cpu",), (None, True))
    ]
    return (
        results,
        index,
        outcome(cuda, accelerator.set_device_index, 9)["error"],
        outcome(cuda, accelerator.current_stream, 9),
    )


def contexts(cuda, torch_like):
    accelerator = torch_like.accelerator

    def inside(index):
        with accelerator.device_index(index) as given:
            return accelerator.current_device_index(), given is None

    seen = [inside(index) for index in (1, 0, None)]
    return (
        seen,
        accelerator.current_device_index(),
        [outcome(cuda, inside, index)["error"] for index in (9, -1, "cuda:1")],
    )


def streams(cuda, torch_like):
    accelerator = torch_like.accelerator
    stream = torch_like.Stream("cuda:1")
    accelerator.set_stream(stream)
    seen = [
        accelerator.current_device_index(),
        accelerator.current_stream() == stream,
        accelerator.current_stream(0).stream_id,
    ]
    accelerator.set_stream(cuda.Stream(0))
    return (
        seen,
        accelerator.current_device_index(),
        accelerator.current_stream().stream_id,
        accelerator.current_stream("cuda:1") == stream,
    )


def memory(cuda, torch_like):
    accelerator = torch_like.accelerator
    free, total = accelerator.get_memory_info(1)
    block = torch_like.empty(3 << 20, dtype=torch_like.uint8, device="cuda:1")
    during = [
        accelerator.memory_allocated(1),
        accelerator.memory_reserved(1),
        accelerator.max_memory_allocated(1),
        accelerator.max_memory_reserved("cuda:1"),
    ]
    del block
    accelerator.reset_peak_memory_stats(1)
    accelerator.reset_accumulated_memory_stats(1)
    after = [
        accelerator.memory_allocated(1),
        accelerator.memory_reserved(1),
        accelerator.max_memory_allocated(1),
        accelerator.memory_allocated(),
    ]
    keys = len(accelerator.memory_stats(1))
    accelerator.empty_cache()
    return during, after, keys, accelerator.memory_reserved(1), free == total


def unavailable_features(cuda, torch_like):
    accelerator = torch_like.accelerator
    accelerator.current_device_index()
    uses = (
        accelerator.synchronize,
        accelerator.get_memory_info,
        accelerator.memory_allocated,
        accelerator.memory_stats,
        accelerator.reset_peak_memory_stats,
    )
    return [outcome(cuda, use, 9)["error"] for use in uses], outcome(cuda, accelerator.get_device_capability)


def seeds(cuda, torch_like):
    accelerator = torch_like.accelerator
    cuda.manual_seed_all(7)
    states = [state.tolist() for state in accelerator.random.get_rng_state_all()]
    return (
        accelerator.random.initial_seed(),
        states,
        accelerator.random.get_rng_state(1).tolist() == states[1],
        accelerator.synchronize(),
    )


def indices_of_the_current_device(cuda, torch_like):
    accelerator = torch_like.accelerator
    accelerator.set_device_index(1)
    state = accelerator.random.get_rng_state(1).tolist()
    known = [
        accelerator.current_stream(-1) == accelerator.current_stream(1),
        accelerator.random.get_rng_state(-1).tolist() == state,
    ]
    with accelerator.device_index(True):
        known.append(accelerator.current_device_index())
    return known, outcome(cuda, accelerator.synchronize, -1), outcome(cuda, accelerator.current_stream, -2)
