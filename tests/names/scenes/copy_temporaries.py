"""Memory that copies, conversions and reads take for a moment, and that pools and graphs of several devices keep."""

from __future__ import annotations

import copy


def taken(cuda, call, device=0):
    """Return the bytes that a call takes at most and keeps, and its allocations."""
    cuda.reset_peak_memory_stats(device)
    before, count = cuda.memory_allocated(device), cuda.memory_stats(device)["allocation.all.allocated"]
    kept = call()
    stats = cuda.memory_stats(device)
    found = [cuda.max_memory_allocated(device) - before, cuda.memory_allocated(device) - before]
    del kept
    return [*found, stats["allocation.all.allocated"] - count]


def strided_copies(cuda, torch_like):
    device = torch_like.ones(1000, 1000, device="cuda")
    half, host = device[:, :500], torch_like.ones(1000, 500)
    double, column = torch_like.ones(1000, 500, dtype=torch_like.float64), torch_like.ones(1000, 1)
    calls = [
        *(half.cpu, lambda: half.to("cpu", non_blocking=True), lambda: half.copy_(host), device.t().cpu),
        *(lambda: half.copy_(host, non_blocking=True), lambda: half.copy_(double), lambda: half.copy_(double, True)),
        *(lambda: double.copy_(half), lambda: double.copy_(half, True), lambda: half.copy_(column), half.clone),
        *(lambda: host.to("cuda", torch_like.float16), lambda: host.to("cuda", torch_like.float16, True)),
        *(lambda: double.copy_(device[:, :1]), device[:, :1].cpu, lambda: host.t().to("cuda")),
    ]
    return [taken(cuda, call) for call in calls]


def copies_between_devices(cuda, torch_like):
    source = torch_like.empty(10 << 20, dtype=torch_like.uint8, device="cuda:0")
    calls = [
        *(lambda: source.to("cuda:1", torch_like.float32), lambda: source[::2].to("cuda:1")),
        lambda: source[::2].to("cuda:1", torch_like.float64),
    ]
    return [[taken(cuda, call, device) for device in (0, 1)] for call in calls]


def deep_copies(cuda, torch_like):
    x = torch_like.ones(1000, device="cuda")
    pair = copy.deepcopy([x, x[10:20:2]])
    found = [[list(each.shape), list(each.stride()), each.storage_offset()] for each in pair]
    shared = pair[0].untyped_storage().data_ptr() == pair[1].untyped_storage().data_ptr()
    return [found, shared, taken(cuda, lambda: copy.deepcopy(x)), taken(cuda, lambda: copy.deepcopy(x[:10]))]


def reads_of_numbers(cuda, torch_like):
    x, found = torch_like.tensor(5, device="cuda"), []
    for read in (x.item, lambda: bool(x), lambda: float(x), x.tolist, lambda: f"{x}", lambda: list(range(x))):
        read()
        stats = cuda.host_memory_stats()
        found.append([stats["active_requests.allocated"], stats["active_requests.current"]])
    return found


def pools_on_two_devices(cuda, torch_like):
    def state():
        return [[cuda.memory_stats(at)["num_sync_all_streams"], cuda.memory_reserved(at)] for at in (0, 1)]

    for device in (0, 1):
        torch_like.empty(1, device=device)
    pool = cuda.MemPool(no_split=True)
    found = [state()]
    with cuda.use_mem_pool(pool, 1):
        x = torch_like.empty(365, dtype=torch_like.uint8, device="cuda:1")
        found += [cuda.memory_allocated(1), pool.use_count()]
    with cuda.device(1):
        found += [pool.use_count(), state()]
    del x
    found.append(state())
    del pool
    found.append(state())
    pool = cuda.MemPool()
    del pool
    return [*found, state()]


def a_graph_empties_every_cache(cuda, torch_like):
    x = torch_like.empty(9, device="cuda:1")
    del x
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        inside = cuda.memory_reserved(1)
        made = torch_like.zeros(9, device="cuda")
    return inside, list(made.shape)


def snapshots_leave_an_entry(cuda, torch_like):
    pool = cuda.MemPool()
    torch_like.empty(1, device="cuda")
    cuda.memory._record_memory_history(stacks="python")
    with cuda.use_mem_pool(pool):
        kept = torch_like.empty(9, device="cuda")
    cuda.memory_snapshot()
    cuda.memory_snapshot(pool.id, False)
    pool.snapshot()
    trace = cuda.memory._snapshot()["device_traces"][0]
    return [[entry["action"], entry["size"], any(entry["pool_id"])] for entry in trace], list(kept.shape)


def keys_of_the_accelerators_statistics(cuda, torch_like):
    with cuda.use_mem_pool(pool := cuda.MemPool()):
        kept = torch_like.empty(1000, device="cuda")
    stats = torch_like.accelerator.memory_stats()
    return type(stats).__name__, sorted(stats), pool.use_count(), list(kept.shape)


def streams_that_are_current(cuda, torch_like):
    for device in (0, 1):
        torch_like.empty(1, device=device)
    stream, found = cuda.Stream(1), []
    for context in (cuda.default_stream(1), stream, cuda.current_stream(1), cuda.stream(cuda.default_stream(1))):
        with context:
            found.append([cuda.current_device(), cuda.current_stream(1) == stream])
    cuda.set_stream(stream)
    cuda.set_device(0)
    for context in (stream, cuda.default_stream(1), cuda.default_stream(0)):
        with context:
            found.append([cuda.current_device(), cuda.current_stream(1) == stream])
    return [*found, cuda.current_device()]
