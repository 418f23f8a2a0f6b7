"""The accelerator, whatever it is called: here it is CUDA."""

from __future__ import annotations

from support.on_oracle import outcome

FRESH_PROCESS = True  # what comes before the first use is asked, too


def before_the_first_use(cuda, torch_like):
    it = torch_like.accelerator
    known = [str(it.current_accelerator()), str(it.current_accelerator(True)), it.device_count(), it.is_available()]
    memory = [it.memory_allocated(), dict(it.memory_stats()), it.empty_cache(), it.empty_host_cache()]
    return known, memory, cuda.is_initialized(), it.current_device_index(), cuda.is_initialized()


def the_current_device(cuda, torch_like):
    it = torch_like.accelerator
    seen = []
    for device in (1, "cuda:0", torch_like.device("cuda:1"), -1):
        it.set_device_index(device)
        seen.append((it.current_device_index(), cuda.current_device()))
    return seen, outcome(cuda, it.current_device_idx), outcome(cuda, it.set_device_idx, 0)


def devices_that_cannot_be_meant(cuda, torch_like):
    it = torch_like.accelerator
    said = [outcome(cuda, it.set_device_index, device) for device in ("cpu", "mps:0", None, "cuda")]
    index = [
        outcome(cuda, it._utils._get_device_index, *asked) for asked in ((1.5,), (1.5, True), ("cpu",), (None, True))
    ]
    return said, index, outcome(cuda, it.set_device_index, 9)["error"], outcome(cuda, it.current_stream, 9)


def contexts(cuda, torch_like):
    it = torch_like.accelerator

    def inside(index):
        with it.device_index(index) as given:
            return it.current_device_index(), given is None

    seen = [inside(index) for index in (1, 0, None)]
    return seen, it.current_device_index(), [outcome(cuda, inside, index)["error"] for index in (9, -1, "cuda:1")]


def streams(cuda, torch_like):
    it = torch_like.accelerator
    stream = torch_like.Stream("cuda:1")
    it.set_stream(stream)
    seen = [it.current_device_index(), it.current_stream() == stream, it.current_stream(0).stream_id]
    it.set_stream(cuda.Stream(0))
    return seen, it.current_device_index(), it.current_stream().stream_id, it.current_stream("cuda:1") == stream


def memory(cuda, torch_like):
    it = torch_like.accelerator
    free, total = it.get_memory_info(1)
    block = torch_like.empty(3 << 20, dtype=torch_like.uint8, device="cuda:1")
    held = [it.memory_allocated(1), it.memory_reserved(1), it.max_memory_allocated(1), it.max_memory_reserved("cuda:1")]
    del block
    it.reset_peak_memory_stats(1)
    it.reset_accumulated_memory_stats(1)
    left = [it.memory_allocated(1), it.memory_reserved(1), it.max_memory_allocated(1), it.memory_allocated()]
    keys = len(it.memory_stats(1))
    it.empty_cache()
    return held, left, keys, it.memory_reserved(1), free == total


def what_is_not_there(cuda, torch_like):
    it = torch_like.accelerator
    it.current_device_index()
    uses = (it.synchronize, it.get_memory_info, it.memory_allocated, it.memory_stats, it.reset_peak_memory_stats)
    return [outcome(cuda, use, 9)["error"] for use in uses], outcome(cuda, it.get_device_capability)


def seeds(cuda, torch_like):
    it = torch_like.accelerator
    cuda.manual_seed_all(7)
    states = [state.tolist() for state in it.random.get_rng_state_all()]
    return it.random.initial_seed(), states, it.random.get_rng_state(1).tolist() == states[1], it.synchronize()


def indices_that_mean_the_current_device(cuda, torch_like):
    it = torch_like.accelerator
    it.set_device_index(1)
    state = it.random.get_rng_state(1).tolist()
    known = [it.current_stream(-1) == it.current_stream(1), it.random.get_rng_state(-1).tolist() == state]
    with it.device_index(True):
        known.append(it.current_device_index())
    return known, outcome(cuda, it.synchronize, -1), outcome(cuda, it.current_stream, -2)
