"""Every function of devices, streams, events, memory and seeds on a machine without a driver."""

from __future__ import annotations

from importlib import import_module

from support.on_oracle import outcome

DRIVER = False

DIFFERS = {
    "insufficient_driver": "forebay raises what all functions raise without a driver",
    "summaries": "forebay returns a table of zeros",
    "unneeded_devices": "forebay needs no device for them",
}


def results(cuda, calls):
    """Return the outcome of each call, with the first line of its error; forebay's next line is about emulation."""
    found = {}
    for name, call in calls.items():
        found[name] = result = outcome(cuda, call)
        if "message" in result:
            result["message"] = result["message"].partition("\n")[0]
    return found | {"initialised": cuda.is_initialized()}


def devices(cuda, torch_like):
    calls = {
        "init": cuda.init,
        "current_device": cuda.current_device,
        "set_device": lambda: cuda.set_device(0),
        "set_device(-1)": lambda: cuda.set_device(-1),
        "set_device(cpu)": lambda: cuda.set_device("cpu"),
        "device(0)": lambda: cuda.device(0).__enter__(),
        "device(-1)": lambda: cuda.device(-1).__enter__(),
        "device(None)": lambda: cuda.device(None).idx,
        "device_of": lambda: cuda.device_of(torch_like.empty(1)).__enter__(),
        "_DeviceGuard": lambda: cuda._DeviceGuard(0).__enter__(),
        "_exchange_device": lambda: cuda._exchange_device(0),
        "_maybe_exchange_device": lambda: cuda._maybe_exchange_device(0),
        "synchronize": cuda.synchronize,
        "synchronize(0)": lambda: cuda.synchronize(0),
        "synchronize(cpu)": lambda: cuda.synchronize("cpu"),
        "get_device_properties": lambda: cuda.get_device_properties(0),
        "get_device_name": cuda.get_device_name,
        "get_device_capability": cuda.get_device_capability,
        "can_device_access_peer": lambda: cuda.can_device_access_peer(0, 1),
        "_get_device_index": lambda: cuda._utils._get_device_index(None, True),
        "_get_device_index(cuda:1)": lambda: cuda._utils._get_device_index("cuda:1"),
        "counts": lambda: [cuda.device_count(), cuda.is_available(), cuda.is_bf16_supported()],
        "get_sync_debug_mode": cuda.get_sync_debug_mode,
        "set_sync_debug_mode": lambda: cuda.set_sync_debug_mode(1),
        "ipc_collect": cuda.ipc_collect,
        "cudart": cuda.cudart,
    }
    return results(cuda, calls)


def streams(cuda, torch_like):
    def enter(stream):
        with cuda.stream(stream):
            return "entered"

    calls = {
        "current_stream": cuda.current_stream,
        "default_stream": cuda.default_stream,
        "stream(None)": lambda: enter(None),
        "set_stream(None)": lambda: cuda.set_stream(None),
        "get_stream_from_external": lambda: cuda.get_stream_from_external(0),
        "Event": lambda: repr(cuda.Event()).partition(".")[2],
        "Event.record": lambda: cuda.Event().record(),
        "Event.query": lambda: cuda.Event().query(),
        "Event.wait": lambda: cuda.Event().wait(),
        "Event.synchronize": lambda: cuda.Event().synchronize(),
        "Event.elapsed_time": lambda: cuda.Event().elapsed_time(cuda.Event()),
        "Event(3.5)": lambda: cuda.Event(3.5),
    }
    return results(cuda, calls)


def insufficient_driver(cuda, torch_like):
    calls = {
        "Stream": cuda.Stream,
        "torch.Stream": lambda: torch_like.Stream("cuda"),
        "ExternalStream": lambda: cuda.ExternalStream(0),
        "ipc_handle": lambda: cuda.Event(interprocess=True).ipc_handle(),
        "_sleep": lambda: cuda._sleep(1),
    }
    return results(cuda, calls)


def unneeded_devices(cuda, torch_like):
    calls = {
        "Generator": lambda: str(torch_like.Generator("cuda").device),
        "CUDAGraph": cuda.CUDAGraph,
        "is_current_stream_capturing": cuda.is_current_stream_capturing,
        "priority_range": cuda.Stream.priority_range,
    }
    return results(cuda, calls)


def seeds(cuda, torch_like):
    state = torch_like.zeros(16, dtype=torch_like.uint8)

    def fork():
        with torch_like.random.fork_rng([0]):
            return "entered"

    calls = {
        "manual_seed": lambda: cuda.manual_seed(3),
        "manual_seed_all": lambda: cuda.manual_seed_all(3),
        "seed": cuda.seed,
        "seed_all": cuda.seed_all,
        "initial_seed": cuda.initial_seed,
        "get_rng_state": cuda.get_rng_state,
        "get_rng_state_all": cuda.get_rng_state_all,
        "set_rng_state": lambda: cuda.set_rng_state(state),
        "set_rng_state_all": lambda: cuda.set_rng_state_all([state]),
        "default_generators": lambda: cuda.default_generators,
        "fork_rng": fork,
        "_get_rng_state_offset": cuda._get_rng_state_offset,
        "_set_rng_state_offset": lambda: cuda._set_rng_state_offset(4),
    }
    return results(cuda, calls)


def memory(cuda, torch_like):
    calls = {
        "memory_allocated": cuda.memory_allocated,
        "memory_reserved": cuda.memory_reserved,
        "memory_stats": lambda: dict(cuda.memory_stats()),
        "memory_snapshot": cuda.memory_snapshot,
        "empty_cache": cuda.empty_cache,
        "reset_peak_memory_stats": cuda.reset_peak_memory_stats,
        "reset_accumulated_memory_stats": cuda.reset_accumulated_memory_stats,
        "mem_get_info": cuda.mem_get_info,
        "caching_allocator_alloc": lambda: cuda.caching_allocator_alloc(1),
        "caching_allocator_delete": lambda: cuda.caching_allocator_delete(1),
        "caching_allocator_delete(0)": lambda: cuda.caching_allocator_delete(0),
        "set_per_process_memory_fraction": lambda: cuda.set_per_process_memory_fraction(0.5),
        "get_per_process_memory_fraction": cuda.get_per_process_memory_fraction,
        "MemPool": cuda.MemPool,
        "host_memory_stats": lambda: dict(cuda.host_memory_stats()),
        "get_allocator_backend": cuda.get_allocator_backend,
        "graph_pool_handle": lambda: len(cuda.graph_pool_handle()),
        "_record_memory_history": cuda.memory._record_memory_history,
    }
    return results(cuda, calls)


def summaries(cuda, torch_like):
    return results(cuda, {"memory_summary": cuda.memory_summary, "with an index": lambda: cuda.memory_summary(0)})


def tensors(cuda, torch_like):
    made = torch_like.ones(1)
    calls = {
        "empty": lambda: torch_like.empty(1, device="cuda"),
        "cuda:1": lambda: torch_like.zeros(1, device="cuda:1"),
        "to": lambda: made.to("cuda"),
        "cuda()": made.cuda,
        "FloatTensor": lambda: cuda.FloatTensor(1),
        "is_pinned": made.is_pinned,
        "default": lambda: str(torch_like.empty(1).device),
    }
    return results(cuda, calls)


def copies_between_devices(cuda, torch_like):
    comm = import_module(f"{cuda.__name__}.comm")
    made = torch_like.ones(2)
    calls = {
        "reduce_add": lambda: comm.reduce_add([made, made]),
        "broadcast": lambda: comm.broadcast(made, [0]),
        "scatter": lambda: comm.scatter(made, [0]),
        "gather": lambda: comm.gather([made]),
    }
    return results(cuda, calls)
