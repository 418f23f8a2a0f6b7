"""Memory pools (`MemPool`) with a limit, in threads and nested, with and without expandable segments."""

from __future__ import annotations

import contextlib
import threading

from support.on_oracle import outcome

DIFFERS = {"pool_on_another_device_again": "PyTorch releases the pool on the other device after its first use there"}
MIB = 1 << 20
COUNTS = ("num_alloc_retries", "num_device_alloc", "num_device_free", "num_ooms", "num_sync_all_streams")


def empty(torch_like, nbytes):
    return torch_like.empty(nbytes, dtype=torch_like.int8, device="cuda")


def hold(made, torch_like, nbytes):
    made.append(empty(torch_like, nbytes))


def counts(cuda):
    stats = cuda.memory_stats()
    return [stats[name] for name in (*COUNTS, "reserved_bytes.all.current", "active_bytes.all.current")]


def segments(rows):
    """Return the segments without addresses, smallest first."""
    rows = [[row["total_size"], row["is_expandable"], row["blocks"]] for row in rows]
    return sorted([size, flag, [[block["size"], block["state"]] for block in blocks]] for size, flag, blocks in rows)


@contextlib.contextmanager
def settings(torch_like, expandable):
    torch_like._C._accelerator_setAllocatorSettings(f"expandable_segments:{expandable}")
    try:
        yield
    finally:
        torch_like._C._accelerator_setAllocatorSettings("expandable_segments:False")


@contextlib.contextmanager
def limited(cuda, nbytes):
    """Permit that many more bytes."""
    cuda.init()
    cuda.empty_cache()
    total = cuda.mem_get_info(0)[1]
    cuda.set_per_process_memory_fraction((nbytes + cuda.memory_reserved(0)) / total, 0)
    try:
        yield
    finally:
        cuda.set_per_process_memory_fraction(1.0, 0)


def in_pool(cuda, torch_like, pool, nbytes):
    with cuda.use_mem_pool(pool):
        return empty(torch_like, nbytes)


def with_limit(cuda, torch_like, expandable):
    lending, private = cuda.MemPool(use_on_oom=True), cuda.MemPool()
    results = []
    with settings(torch_like, expandable), limited(cuda, 80 * MIB):
        made = [in_pool(cuda, torch_like, pool, 40 * MIB) for pool in (private, lending)]
        lent = made[1].data_ptr()
        results.append(outcome(cuda, empty, torch_like, 40 * MIB)["error"])
        results.append(counts(cuda))
        made.clear()
        found = torch_like.empty(0) if expandable else empty(torch_like, 30 * MIB)
        results += [found.data_ptr() == lent, outcome(cuda, empty, torch_like, 30 * MIB)["error"], counts(cuda)]
        results += [segments(lending.snapshot()), segments(private.snapshot())]
        del found
        results += [in_pool(cuda, torch_like, lending, 20 * MIB).data_ptr() == lent, counts(cuda)]
        del lending, private
        results.append(counts(cuda))
        results.append(empty(torch_like, 70 * MIB).numel())
    return [*results, counts(cuda)]


def a_pool_lends_to_requests_over_the_limit(cuda, torch_like):
    return with_limit(cuda, torch_like, False)


def an_expandable_pool_lends_to_requests_over_the_limit(cuda, torch_like):
    return with_limit(cuda, torch_like, True)


def deleted(cuda, torch_like, expandable):
    results = []
    with settings(torch_like, expandable), limited(cuda, 40 * MIB):
        for _ in range(4):
            pool = cuda.MemPool(use_on_oom=True)
            in_pool(cuda, torch_like, pool, 40 * MIB)
            del pool
            results.append(counts(cuda))
        pool = cuda.MemPool(use_on_oom=True)
        in_pool(cuda, torch_like, pool, 40 * MIB)
        made = []
        results += [outcome(cuda, hold, made, torch_like, size).get("error") for size in (30 * MIB, 10 * MIB)]
        results += [len(made), segments(pool.snapshot()), counts(cuda)]
    return results


def deleted_pools_lend_nothing(cuda, torch_like):
    return deleted(cuda, torch_like, False)


def deleted_expandable_pools_lend_nothing(cuda, torch_like):
    return deleted(cuda, torch_like, True)


def whole(cuda, torch_like, expandable):
    pool, results = cuda.MemPool(no_split=True), []
    with settings(torch_like, expandable):
        made = [in_pool(cuda, torch_like, pool, size) for size in (4 * MIB, 4 * MIB, 100, 100, 30 * MIB)]
        results += [segments(pool.snapshot()), counts(cuda)]
        del made[0], made[1]
        made += [in_pool(cuda, torch_like, pool, size) for size in (3 * MIB, 50, 2 * MIB)]
    return [*results, segments(pool.snapshot()), counts(cuda)]


def blocks_are_not_split(cuda, torch_like):
    return whole(cuda, torch_like, False)


def blocks_of_expandable_segments_are_not_split(cuda, torch_like):
    return whole(cuda, torch_like, True)


def nested(cuda, torch_like, expandable):
    pools, made = [cuda.MemPool() for _ in range(3)], []

    def allocate(inner):
        with cuda.use_mem_pool(inner[0]):
            made.append(empty(torch_like, 80 * MIB))
            if inner[1:]:
                allocate(inner[1:])
                made.append(empty(torch_like, 80 * MIB))

    with settings(torch_like, expandable):
        allocate(pools)
    result = [segments(cuda.memory.memory_snapshot(pool.id)) for pool in pools], counts(cuda)
    made.clear()  # `allocate` is a cycle, which would keep the tensors
    return result


def the_innermost_pool_is_used(cuda, torch_like):
    return nested(cuda, torch_like, False)


def the_innermost_expandable_pool_is_used(cuda, torch_like):
    return nested(cuda, torch_like, True)


def emptied(cuda, torch_like, expandable):
    pools = [cuda.MemPool() for _ in range(3)]

    def use(pool):
        with cuda.use_mem_pool(pool):
            empty(torch_like, 16)
            cuda.empty_cache()

    with settings(torch_like, expandable):
        for pool in pools:
            thread = threading.Thread(target=use, args=(pool,))
            thread.start()
            thread.join()
        results = [[segments(pool.snapshot()) for pool in pools]]
        cuda.empty_cache()
        results += [[segments(pool.snapshot()) for pool in pools], counts(cuda)]
        use(pools.pop())
        results.append(counts(cuda))
        pools.clear()
        return [*results, counts(cuda)]


def a_pool_in_use_is_not_emptied(cuda, torch_like):
    return emptied(cuda, torch_like, False)


def an_expandable_pool_in_use_is_not_emptied(cuda, torch_like):
    return emptied(cuda, torch_like, True)


def threads(cuda, torch_like, expandable):
    found = []

    def allocate():
        held = empty(torch_like, MIB)
        rows = cuda.memory._snapshot()["segments"]
        found.append(sorted([row["segment_pool_id"] == (0, 0), row["active_size"], held.numel()] for row in rows))

    with settings(torch_like, expandable):
        pool, first = cuda.MemPool(), empty(torch_like, MIB)
        with cuda.use_mem_pool(pool):
            empty(torch_like, MIB)
            other = threading.Thread(target=allocate)
            other.start()
            other.join()
    return found, first.numel(), counts(cuda)


def other_threads_do_not_use_the_pool(cuda, torch_like):
    return threads(cuda, torch_like, False)


def other_threads_do_not_use_the_expandable_pool(cuda, torch_like):
    return threads(cuda, torch_like, True)


def memory_outlives_its_pool(cuda, torch_like):
    pool = cuda.MemPool()
    held = [in_pool(cuda, torch_like, pool, size) for size in (100, 3 * MIB)]
    number = pool.id
    del pool
    results = [segments(cuda.memory_snapshot(number)), counts(cuda)]
    del held[1]
    results.append(counts(cuda))
    cuda.empty_cache()
    results += [segments(cuda.memory_snapshot(number)), counts(cuda)]
    held.clear()
    cuda.empty_cache()
    return [*results, segments(cuda.memory_snapshot(number)), counts(cuda)]


def numbers_of_pools(cuda, torch_like):
    ids = [cuda.graph_pool_handle(), cuda.MemPool().id, cuda.graph_pool_handle()]
    made = []
    workers = [threading.Thread(target=lambda: made.append(cuda.MemPool().id)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [pool[0] for pool in ids], ids == sorted(ids), len({*ids, *made})


def use_on(cuda, torch_like, pool, index):
    with cuda.use_mem_pool(pool, f"cuda:{index}"):
        torch_like.empty(1000, device=f"cuda:{index}")


def pool_on_another_device(cuda, torch_like):
    """The pool is in use on its own device, and used once on another."""
    pool = cuda.MemPool()
    found = [outcome(cuda, use_on, cuda, torch_like, pool, index) for index in (0, 0, 1, 0)]
    return found, pool.use_count()


def pool_on_another_device_again(cuda, torch_like):
    pool = cuda.MemPool()
    return [outcome(cuda, use_on, cuda, torch_like, pool, 1).get("error") for _ in range(2)]


def public_attributes_of_a_pool(cuda, torch_like):
    """PyTorch 2.15 has three; `allocator` was removed before it."""
    pool = cuda.MemPool()
    found = {name: hasattr(pool, name) for name in ("allocator", "device", "id", "snapshot", "use_count", "use_on_oom")}
    return found, outcome(cuda, getattr, pool, "allocator"), cuda.is_initialized()
