"""Limits and recovery from a full device, with expandable segments. The oracle's log goes to its standard error."""

from __future__ import annotations

from support.on_oracle import outcome

ENVIRON = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
MIB = 1 << 20
COUNTS = ("num_alloc_retries", "num_device_alloc", "num_device_free", "num_ooms", "num_sync_all_streams")
BYTES = ("reserved_bytes.all.current", "reserved_bytes.all.peak", "active_bytes.all.peak", "segment.all.current")


def empty(torch_like, nbytes):
    return torch_like.empty(nbytes, dtype=torch_like.int8, device="cuda")


def counts(cuda):
    stats = cuda.memory_stats()
    return [stats[name] for name in (*COUNTS, *BYTES)]


def segments(cuda):
    """Return the segments without addresses, smallest first."""
    rows = [[segment["total_size"], segment["is_expandable"], segment["blocks"]] for segment in cuda.memory_snapshot()]
    return sorted([size, flag, [[block["size"], block["state"]] for block in blocks]] for size, flag, blocks in rows)


def without_settings(found):
    """Return the outcome; forebay names its own variable for the settings."""
    return found | {"message": found["message"].partition(" expandable_segments is enabled")[0]}


def recovery_from_a_full_device(cuda, torch_like):
    half = cuda.get_device_properties(0).total_memory // 2
    first = empty(torch_like, half)
    results = [counts(cuda), without_settings(outcome(cuda, empty, torch_like, half)), counts(cuda)]
    del first
    second = empty(torch_like, half)  # in the pages of the first
    results.append(counts(cuda))
    del second
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    return [*results, counts(cuda)]


def pages_of_other_streams_are_released(cuda, torch_like):
    with cuda.stream(cuda.Stream()):
        cached = empty(torch_like, 600 * MIB)
    del cached
    kept = empty(torch_like, 600 * MIB)
    return kept.numel(), counts(cuda), segments(cuda)


def the_limit_counts_pages(cuda, torch_like):
    small = empty(torch_like, 4096)
    total = cuda.get_device_properties(0).total_memory
    cuda.set_per_process_memory_fraction(0.5, 0)
    below = int(total * 0.499) - cuda.max_memory_reserved()
    results = [small.numel(), outcome(cuda, empty, torch_like, below), counts(cuda)]
    cuda.empty_cache()
    results += [counts(cuda), without_settings(outcome(cuda, empty, torch_like, total // 2)), counts(cuda)]
    cuda.set_per_process_memory_fraction(1.0, 0)
    return results


def the_limit_permits_growth_into_free_pages(cuda, torch_like):
    cuda.set_per_process_memory_fraction(0.5, 0)
    held = [empty(torch_like, 100 * MIB) for _ in range(4)]
    results = [counts(cuda), without_settings(outcome(cuda, empty, torch_like, 200 * MIB)), counts(cuda)]
    del held[1]
    results += [outcome(cuda, empty, torch_like, 110 * MIB), counts(cuda)]
    del held[2]
    results += [outcome(cuda, empty, torch_like, 210 * MIB), counts(cuda), segments(cuda)]
    cuda.set_per_process_memory_fraction(1.0, 0)
    return results


def a_pool_that_has_grown_returns_to_its_checkpoint(cuda, torch_like):
    cuda.init()
    pool, c = cuda.graph_pool_handle(), torch_like._C
    c._cuda_beginAllocateCurrentThreadToPool(0, pool)
    kept = [empty(torch_like, 5 * MIB), empty(torch_like, 100)]
    state = c._cuda_getCheckpointState(0, pool)
    stale = [empty(torch_like, 30 * MIB), *(empty(torch_like, MIB) for _ in range(5))]
    c._cuda_endAllocateToPool(0, pool)
    results = [len(kept), segments(cuda)]
    c._cuda_setCheckpointPoolState(0, state, [tensor.untyped_storage()._cdata for tensor in stale], [])
    results.append(segments(cuda))
    del kept, stale
    c._cuda_setCheckpointPoolState(0, state, [], [])
    return [*results, segments(cuda)]


def a_checkpoint_without_memory(cuda, torch_like):
    cuda.init()
    pool, c = cuda.graph_pool_handle(), torch_like._C
    c._cuda_beginAllocateCurrentThreadToPool(0, pool)
    state = c._cuda_getCheckpointState(0, pool)
    empty(torch_like, 100)
    c._cuda_setCheckpointPoolState(0, state, [], [])
    c._cuda_endAllocateToPool(0, pool)
    return segments(cuda)


def nested_pools_have_one_segment_each(cuda, torch_like):
    pools, made = [cuda.MemPool() for _ in range(3)], []

    def allocate(inner):
        with cuda.use_mem_pool(inner[0]):
            made.append(empty(torch_like, 20 * MIB))
            if inner[1:]:
                allocate(inner[1:])
                made.append(empty(torch_like, 20 * MIB))

    allocate(pools)
    rows = [cuda.memory.memory_snapshot(pool.id) for pool in pools]
    found = [[[row["total_size"], len(row["blocks"]), row["is_expandable"]] for row in each] for each in rows]
    torch_like._C._accelerator_setAllocatorSettings("expandable_segments:False")
    with cuda.use_mem_pool(pools[2]):
        made.append(empty(torch_like, 20 * MIB))
    return found, sorted([row["total_size"], row["is_expandable"]] for row in cuda.memory.memory_snapshot(pools[2].id))
