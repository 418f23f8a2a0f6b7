"""Checkpoints of memory pools: the private functions that Inductor's cudagraph trees use."""

from __future__ import annotations

import contextlib

from support.on_oracle import outcome

MIB = 1 << 20
SIZES = ("total_size", "allocated_size", "active_size")
FRESH_PROCESS = True  # for the tensors that are not deleted
undeleted = []  # tensors whose memory PyTorch has freed: it would end the process when they are deleted


def empty(torch_like, nbytes, device="cuda"):
    return torch_like.empty(nbytes, dtype=torch_like.uint8, device=device)


def new_pool(cuda):
    """Return the id of a pool; its number is that of no other scene."""
    cuda.init()
    return cuda.graph_pool_handle()


@contextlib.contextmanager
def in_pool(torch_like, pool, device=0):
    torch_like._C._cuda_beginAllocateCurrentThreadToPool(device, pool)
    try:
        yield
    finally:
        torch_like._C._cuda_endAllocateToPool(device, pool)


def segments(cuda, pool, names=("size", "requested_size", "state")):
    """Return sizes and blocks of the pool's segments, smallest first."""
    return sorted(
        [*map(row.get, SIZES), [[block[name] for name in names] for block in row["blocks"]]]
        for row in cuda.memory_snapshot(pool)
    )


def stats(cuda):
    """Return the statistics that are not 0. PyTorch restores segments in the order of a hash table: no peaks."""
    found = cuda.memory_stats().items()
    return {key: value for key, value in found if value and "private_pools" not in key and not key.endswith("peak")}


def numbers(*tensors):
    return [tensor.untyped_storage()._cdata for tensor in tensors]


def captured(cuda, torch_like, pool, make):
    """Capture a graph in the pool; return it and its tensors."""
    graph, stream = cuda.CUDAGraph(), cuda.Stream()
    with cuda.stream(stream):
        graph.capture_begin(pool=pool)
        empty(torch_like, 512).zero_()
        made = make()
        graph.capture_end()
    return graph, made


def a_checkpoint_of_a_graph_changes_nothing(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C

    def make():
        buffers = [empty(torch_like, 512) for _ in range(11)] + [empty(torch_like, 8 * MIB)]
        return buffers[5], buffers[6], buffers[8], buffers[11]

    graph, made = captured(cuda, torch_like, pool, make)
    before = segments(cuda, pool, ("size", "state"))
    c._cuda_setCheckpointPoolState(0, c._cuda_getCheckpointState(0, pool), [], [])
    after = segments(cuda, pool, ("size", "state"))
    return graph.pool() == pool, len(made), before == after, segments(cuda, pool), stats(cuda)


def blocks_become_live_again(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C
    with in_pool(torch_like, pool):
        made = [empty(torch_like, 512 * (1 + at % 3)) for at in range(9)] + [empty(torch_like, 3 * MIB)]
        del made[1], made[2], made[6]
    state, addresses = c._cuda_getCheckpointState(0, pool), [tensor.data_ptr() for tensor in made]
    del made
    results = [cuda.memory_allocated()]
    c._cuda_setCheckpointPoolState(0, state, [], [])
    results += [cuda.memory_allocated(), c._cuda_checkPoolLiveAllocations(0, pool, set(addresses))]
    results.append(segments(cuda, pool))
    for address in addresses[::2]:
        c._cuda_cudaCachingAllocator_raw_delete(address)
    results += [segments(cuda, pool), outcome(cuda, c._cuda_cudaCachingAllocator_raw_delete, addresses[0])["error"]]
    c._cuda_setCheckpointPoolState(0, state, [], [])
    return [*results, segments(cuda, pool), stats(cuda)]


def history_of_a_restoration(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C
    with in_pool(torch_like, pool):
        made = [empty(torch_like, 512 * (1 + at % 3)) for at in range(5)]
        base = made[0].data_ptr()
        del made[1]
    state = c._cuda_getCheckpointState(0, pool)
    cuda.memory._record_memory_history()
    c._cuda_setCheckpointPoolState(0, state, [], [])
    found = cuda.memory._snapshot()
    cuda.memory._record_memory_history(None)
    entries = [[entry["action"], entry["addr"] - base, entry["size"]] for entry in found["device_traces"][0]]
    frames = [entry["frames"][-1]["name"] for entry in found["device_traces"][0]]
    blocks = [[block["state"], bool(block["frames"])] for row in found["segments"] for block in row["blocks"]]
    return len(made), [entry for entry in entries if entry[0] != "snapshot"], len(set(frames)), blocks


def live_tensors_keep_their_memory(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C
    with in_pool(torch_like, pool):
        kept = empty(torch_like, 100)
    state = c._cuda_getCheckpointState(0, pool)
    c._cuda_setCheckpointPoolState(0, state, [], [])
    results = [segments(cuda, pool), c._has_Standard_Deleter(*numbers(kept))]
    del kept
    return [*results, segments(cuda, pool), cuda.memory_allocated()]


def stale_tensors_lose_their_memory(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C
    with in_pool(torch_like, pool):
        kept = empty(torch_like, 100)
    state = c._cuda_getCheckpointState(0, pool)
    with in_pool(torch_like, pool):
        stale = [empty(torch_like, 100), empty(torch_like, 3000), empty(torch_like, 3 * MIB)]
    c._cuda_setCheckpointPoolState(0, state, numbers(*stale, stale[0]), [])
    results = [segments(cuda, pool), [c._has_Standard_Deleter(number) for number in numbers(kept, *stale)]]
    with in_pool(torch_like, pool):
        again = empty(torch_like, 100)
    results.append(again.data_ptr() == stale[0].data_ptr())
    stale.clear()
    results.append(segments(cuda, pool))
    del kept
    return [*results, segments(cuda, pool)]


def a_stale_tensor_that_was_live_at_the_checkpoint(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C
    with in_pool(torch_like, pool):
        kept = empty(torch_like, 100)
    address = kept.data_ptr()
    c._cuda_setCheckpointPoolState(0, c._cuda_getCheckpointState(0, pool), numbers(kept), [])
    results = [c._has_Standard_Deleter(*numbers(kept)), segments(cuda, pool)]
    del kept
    results.append(segments(cuda, pool))
    c._cuda_cudaCachingAllocator_raw_delete(address)
    return [*results, segments(cuda, pool)]


def storages_receive_their_memory(cuda, torch_like):
    pool, c, device = new_pool(cuda), torch_like._C, torch_like.device("cuda", 0)
    with in_pool(torch_like, pool):
        made = [empty(torch_like, 100 * at) for at in (1, 2, 3)]
    state, addresses = c._cuda_getCheckpointState(0, pool), [tensor.data_ptr() for tensor in made]
    del made
    first, second = (c._construct_storage_from_data_pointer(addresses[0], device, 100) for _ in range(2))
    unrelated = c._construct_storage_from_data_pointer(12345, device, 100)
    owners = [first, second, unrelated, unrelated]
    c._cuda_setCheckpointPoolState(0, state, [], [storage._cdata for storage in owners])
    results = [[c._has_Standard_Deleter(storage._cdata) for storage in owners], segments(cuda, pool)]
    del first, owners
    results.append(segments(cuda, pool))
    del second
    results.append(segments(cuda, pool))
    for address in addresses[1:]:
        c._cuda_cudaCachingAllocator_raw_delete(address)
    return [*results, segments(cuda, pool)]


def a_storage_receives_the_memory_of_a_live_tensor(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C
    with in_pool(torch_like, pool):
        made = [empty(torch_like, 100), empty(torch_like, 200)]
    state = c._cuda_getCheckpointState(0, pool)
    storage = c._construct_storage_from_data_pointer(made[0].data_ptr(), torch_like.device("cuda", 0), 100)
    c._cuda_setCheckpointPoolState(0, state, [], [storage._cdata])
    results = [segments(cuda, pool)]
    del storage
    undeleted.append(made)
    return [*results, segments(cuda, pool)]


def memory_that_was_adopted_since(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C
    with in_pool(torch_like, pool):
        kept = empty(torch_like, 100)
    state = c._cuda_getCheckpointState(0, pool)
    with in_pool(torch_like, pool):
        empty(torch_like, 3 * MIB)
    c._cuda_setCheckpointPoolState(0, state, [], [])
    return kept.numel(), segments(cuda, pool)


def splits_are_those_of_the_checkpoint(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C
    with in_pool(torch_like, pool):
        made = [empty(torch_like, 3 * MIB), empty(torch_like, 5 * MIB)]
    state = c._cuda_getCheckpointState(0, pool)
    made.clear()
    c._accelerator_setAllocatorSettings("max_split_size_mb:20")
    c._cuda_setCheckpointPoolState(0, state, [], [])
    c._accelerator_setAllocatorSettings("")
    return segments(cuda, pool)


def streams_of_a_pool(cuda, torch_like):
    pool, c, stream = new_pool(cuda), torch_like._C, cuda.Stream()
    with in_pool(torch_like, pool):
        made = [empty(torch_like, 100)]
        with cuda.stream(stream):
            made.append(empty(torch_like, 200))
    state = c._cuda_getCheckpointState(0, pool)
    del made[0]
    c._cuda_setCheckpointPoolState(0, state, [], [])
    return sorted([row["stream"] != 0, row["allocated_size"]] for row in cuda.memory_snapshot(pool))


def checkpoints_of_other_pools(cuda, torch_like):
    pool, c, memory_pool = new_pool(cuda), torch_like._C, cuda.MemPool()
    state = c._cuda_getCheckpointState
    with cuda.use_mem_pool(memory_pool):
        held = empty(torch_like, 100)
    results = [outcome(cuda, state, 0, number) for number in (pool, (0, 0))]
    results.append(state(0, memory_pool.id) is not None)
    results.append(c._cuda_checkPoolLiveAllocations(0, memory_pool.id, {held.data_ptr()}))
    results.append(outcome(cuda, c._cuda_checkPoolLiveAllocations, 0, pool, set()))
    with in_pool(torch_like, pool):
        held = empty(torch_like, 100)
    found = state(0, pool)
    results.append(outcome(cuda, c._cuda_setCheckpointPoolState, 1, found, [], []))
    c._cuda_releasePool(0, pool)
    results.append(outcome(cuda, c._cuda_setCheckpointPoolState, 0, found, [], []))
    return [*results, state(0, pool) is not None, held.numel()]


def memory_of_another_device(cuda, torch_like):
    pool, c, held = new_pool(cuda), torch_like._C, []
    for device in (0, 1):
        with in_pool(torch_like, pool, device):
            held.append(empty(torch_like, 100, f"cuda:{device}"))
    state = c._cuda_getCheckpointState(1, pool)
    held.clear()
    found = outcome(cuda, c._cuda_setCheckpointPoolState, 0, state, [], [])
    return found["error"], found["message"].partition("0x")[0]


def pending_frees(cuda, torch_like):
    pool, c, stream = new_pool(cuda), torch_like._C, cuda.Stream()
    with in_pool(torch_like, pool):
        made = [empty(torch_like, 100), empty(torch_like, 1000)]
    state = c._cuda_getCheckpointState(0, pool)
    made[1].record_stream(stream)
    undeleted.append(made)
    return outcome(cuda, c._cuda_setCheckpointPoolState, 0, state, [], []), segments(cuda, pool)


def a_pending_free_has_no_checkpoint(cuda, torch_like):
    pool, c, stream = new_pool(cuda), torch_like._C, cuda.Stream()
    with in_pool(torch_like, pool):
        made = [empty(torch_like, 100), empty(torch_like, 1000)]
    made[1].record_stream(stream)
    del made[1]
    return outcome(cuda, c._cuda_getCheckpointState, 0, pool), len(made)


def errors_of_stale_storages(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C
    with in_pool(torch_like, pool):
        kept = empty(torch_like, 100)
    state = c._cuda_getCheckpointState(0, pool)
    with in_pool(torch_like, pool):
        stale, other = empty(torch_like, 100), empty(torch_like, 100)
    found = outcome(cuda, c._cuda_setCheckpointPoolState, 0, state, numbers(stale), [])
    undeleted.append([kept, stale, other])
    return found


def an_owner_receives_nothing(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C
    with in_pool(torch_like, pool):
        kept = empty(torch_like, 100)
    state = c._cuda_getCheckpointState(0, pool)
    found = outcome(cuda, c._cuda_setCheckpointPoolState, 0, state, [], numbers(kept))
    undeleted.append(kept)
    return found


def live_allocations(cuda, torch_like):
    pool, check = new_pool(cuda), torch_like._C._cuda_checkPoolLiveAllocations
    with in_pool(torch_like, pool):
        held = empty(torch_like, 100)
    address = held.data_ptr()
    results = [check(0, pool, {address}), check(0, pool, {address, 0}), check(0, pool, set())]
    del held
    return [*results, check(0, pool, set()), check(0, pool, {address})]


def during_a_capture(cuda, torch_like):
    pool, c, stream, graph = new_pool(cuda), torch_like._C, cuda.Stream(), cuda.CUDAGraph()
    with cuda.stream(stream):
        graph.capture_begin(pool=pool)
        held = [empty(torch_like, 100), empty(torch_like, 512).zero_()]
        state = c._cuda_getCheckpointState(0, pool)
        results = [outcome(cuda, c._cuda_setCheckpointPoolState, 0, state, [], [])]
        results.append(outcome(cuda, c._cuda_beginAllocateCurrentThreadToPool, 0, pool))
        with in_pool(torch_like, new_pool(cuda)):
            held.append(empty(torch_like, 20))
        graph.capture_end()
    return results, len(held), segments(cuda, pool)
