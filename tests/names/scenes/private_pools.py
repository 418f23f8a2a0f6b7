"""Routing of allocations to memory pools by id, and the users of pools: private functions of `torch._C`."""

from __future__ import annotations

import contextlib
import threading

from support.on_oracle import outcome

MIB = 1 << 20
SIZES = ("total_size", "allocated_size", "active_size")


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


def error_of(cuda, call, *arguments):
    return outcome(cuda, call, *arguments).get("error")


def allocations_of_this_thread(cuda, torch_like):
    pool, made = new_pool(cuda), []
    with in_pool(torch_like, pool):
        held = [empty(torch_like, 100)]
        other = threading.Thread(target=lambda: made.append(empty(torch_like, 200)))
        other.start()
        other.join()
    made.append(empty(torch_like, 300))
    return len(held), segments(cuda, pool), segments(cuda, (0, 0))


def allocations_of_all_threads_and_streams(cuda, torch_like):
    pool, made = new_pool(cuda), []
    torch_like._C._cuda_beginAllocateToPool(0, pool)
    stream = cuda.Stream()

    def allocate():
        with cuda.stream(stream):
            made.append(empty(torch_like, 200))

    other = threading.Thread(target=allocate)
    other.start()
    other.join()
    torch_like._C._cuda_endAllocateToPool(0, pool)
    return segments(cuda, pool), [row["stream"] == stream.cuda_stream for row in cuda.memory_snapshot(pool)]


def allocations_of_a_stream(cuda, torch_like):
    pool, stream = new_pool(cuda), cuda.Stream()
    begin = torch_like._C._cuda_beginAllocateCurrentStreamToPool
    results = [outcome(cuda, begin, 0, pool)]
    with cuda.stream(stream):
        results.append(outcome(cuda, begin, 0, pool))
    held = [empty(torch_like, 100)]
    with cuda.stream(stream):
        held.append(empty(torch_like, 200))
    torch_like._C._cuda_endAllocateToPool(0, pool)
    return results, len(held), segments(cuda, pool)


def the_innermost_pool_is_used(cuda, torch_like):
    outer, inner = new_pool(cuda), new_pool(cuda)
    with in_pool(torch_like, outer):
        held = [empty(torch_like, 100)]
        with in_pool(torch_like, inner):
            held.append(empty(torch_like, 200))
        held.append(empty(torch_like, 300))
    return len(held), segments(cuda, outer), segments(cuda, inner)


def pools_may_end_in_any_order(cuda, torch_like):
    first, second = new_pool(cuda), new_pool(cuda)
    for pool in (first, second):
        torch_like._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
    torch_like._C._cuda_endAllocateToPool(0, first)
    held = empty(torch_like, 100)
    torch_like._C._cuda_endAllocateToPool(0, second)
    return held.numel(), segments(cuda, first), segments(cuda, second)


def each_device_has_its_own_pools(cuda, torch_like):
    pool = new_pool(cuda)
    with in_pool(torch_like, pool, 1):
        held = [empty(torch_like, 100), empty(torch_like, 200, "cuda:1")]
    rows = [[row["device"], row["allocated_size"]] for row in cuda.memory_snapshot(pool)]
    return len(held), rows, error_of(cuda, torch_like._C._cuda_releasePool, 0, pool)


def wrong_order(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C
    results = [outcome(cuda, c._cuda_endAllocateToPool, 0, pool), error_of(cuda, c._cuda_releasePool, 0, pool)]
    results.append(outcome(cuda, c._cuda_beginAllocateToPool, 0, pool))
    results.append(outcome(cuda, c._cuda_beginAllocateCurrentThreadToPool, 0, pool))
    results += [outcome(cuda, c._cuda_endAllocateToPool, 0, pool) for _ in range(2)]
    return results


def users(cuda, torch_like):
    pool, c, counts = cuda.MemPool(), torch_like._C, []
    with cuda.use_mem_pool(pool):
        counts.append(pool.use_count())
    steps = c._cuda_beginAllocateCurrentThreadToPool, c._cuda_endAllocateToPool, c._cuda_releasePool
    counts += [[step(0, pool.id), pool.use_count()] for step in steps]
    with cuda.use_mem_pool(pool):
        counts.append(outcome(cuda, c._cuda_beginAllocateCurrentThreadToPool, 0, (0, 1 << 40))["value"])
        counts.append(pool.use_count())
        c._cuda_endAllocateToPool(0, (0, 1 << 40))
    return counts


def too_many_releases(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C
    with in_pool(torch_like, pool):
        held = [empty(torch_like, 100), empty(torch_like, 3 * MIB)]
    del held[1]
    c._cuda_releasePool(0, pool)
    return error_of(cuda, c._cuda_releasePool, 0, pool), segments(cuda, pool)


def memory_of_a_released_pool(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C
    with in_pool(torch_like, pool):
        held = [empty(torch_like, 100), empty(torch_like, 3 * MIB)]
    del held[1]
    c._cuda_releasePool(0, pool)
    results = [segments(cuda, pool)]
    cuda.empty_cache()
    results.append(segments(cuda, pool))
    held.clear()
    cuda.empty_cache()
    results += [segments(cuda, pool), outcome(cuda, c._cuda_getCheckpointState, 0, pool)]
    with in_pool(torch_like, pool):  # creates a pool with the same id
        held.append(empty(torch_like, 100))
    return [*results, segments(cuda, pool)]


def wrong_types(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C
    arguments = [(), (0,), (0, pool, 1), ("x", pool), (0, 5), (0, (1,)), (0, (1, 2, 3)), (0, None), (None, pool)]
    arguments += [(0.5, pool), (0, ("a", 1)), (300, pool), (0, (-1, 1))]
    names = "beginAllocateToPool beginAllocateCurrentThreadToPool beginAllocateCurrentStreamToPool endAllocateToPool"
    calls = [getattr(c, f"_cuda_{name}") for name in (*names.split(), "releasePool", "getCheckpointState")]
    results = [[error_of(cuda, call, *each) for each in arguments] for call in calls]
    set_state, check = c._cuda_setCheckpointPoolState, c._cuda_checkPoolLiveAllocations
    states = ((), (0, None, [], []), (0, 5, [], []), (0, None, []), (0, None, None, None), ("x", None, [], []))
    results += [error_of(cuda, set_state, *each) for each in states]
    results.append(outcome(cuda, set_state, 0, None, [], []))
    c._cuda_beginAllocateToPool(0, [*pool])
    c._cuda_endAllocateToPool(0, pool)
    results += [error_of(cuda, check, 0, pool, each) for each in ([5], {"a"}, {-1}, None)]
    return [*results, error_of(cuda, c._cuda_CUDAAllocator_AllocatorState)]


def missing_devices(cuda, torch_like):
    pool, c = new_pool(cuda), torch_like._C
    calls = [c._cuda_beginAllocateToPool, c._cuda_beginAllocateCurrentThreadToPool, c._cuda_releasePool]
    found = [outcome(cuda, call, 2, pool) for call in calls]
    stream = c._cuda_beginAllocateCurrentStreamToPool
    results = [[row["error"], row["message"].rpartition(":")[2]] for row in found]
    return results, [outcome(cuda, stream, device, pool) for device in (2, -1)]
