"""Allocation by address, and private memory pools."""

from __future__ import annotations

from support.on_oracle import outcome

MIB = 1 << 20


def allocation_and_deletion_by_address(cuda, torch_like):
    address = cuda.caching_allocator_alloc(1000)
    held = cuda.memory_allocated()
    cuda.caching_allocator_delete(address)
    twice = outcome(cuda, cuda.caching_allocator_delete, address)
    return type(address).__name__, held, cuda.memory_allocated(), twice


def invalid_addresses(cuda, torch_like):
    cuda.init()
    return [outcome(cuda, cuda.caching_allocator_delete, address) for address in (0, 1234)]


def address_inside_a_block(cuda, torch_like):
    address = cuda.caching_allocator_alloc(1000)
    found = outcome(cuda, cuda.caching_allocator_delete, address + 8)
    cuda.caching_allocator_delete(address)
    return found


def invalid_sizes(cuda, torch_like):
    return [outcome(cuda, cuda.caching_allocator_alloc, size) for size in (0, -1)]


def on_a_stream(cuda, torch_like):
    stream = cuda.Stream()
    addresses = [
        cuda.caching_allocator_alloc(1000, None, stream),
        cuda.caching_allocator_alloc(1000, 0, stream.cuda_stream),
        cuda.caching_allocator_alloc(1000, "cuda:0", 0),
    ]
    found = sorted((row["stream"] == stream.cuda_stream, row["allocated_size"]) for row in cuda.memory_snapshot())
    for address in addresses:
        cuda.caching_allocator_delete(address)
    return found


def on_the_current_stream(cuda, torch_like):
    stream = cuda.Stream()
    with cuda.stream(stream):
        address = cuda.caching_allocator_alloc(1000)
    found = [row["stream"] == stream.cuda_stream for row in cuda.memory_snapshot() if row["allocated_size"]]
    cuda.caching_allocator_delete(address)
    return found


def invalid_arguments(cuda, torch_like):
    alloc = cuda.caching_allocator_alloc
    wrong = [(100, None, "x"), (100, 99), (100, torch_like.device("cuda")), (100, "cpu"), (100, 1.5), (-5, 0, "x")]
    return [outcome(cuda, alloc, *arguments) for arguments in wrong]


def on_another_device(cuda, torch_like):
    address = cuda.caching_allocator_alloc(1000, 1)
    found = cuda.memory_allocated(0), cuda.memory_allocated(1), cuda.current_device()
    cuda.caching_allocator_delete(address)
    return found, cuda.memory_allocated(1)


def out_of_memory(cuda, torch_like):
    found = outcome(cuda, cuda.caching_allocator_alloc, 1 << 40)
    return found["error"], found["message"].partition(" Including")[0]


def disabled_cache(cuda, torch_like):
    with cuda.caching_allocator_disabled():
        tensor = torch_like.empty(1000, device="cuda")
        inside = tensor.data_ptr() != 0, cuda.memory_reserved()
        del tensor
    tensor = torch_like.empty(1000, device="cuda")
    return inside, cuda.memory_reserved() - cuda.memory_reserved(1), tensor.data_ptr() != 0


def caching_allocator_enable_requires_a_bool(cuda, torch_like):
    cuda.init()
    return [outcome(cuda, cuda.caching_allocator_enable, value) for value in ("x", None, 1, True)]


def pool_use_counts_and_snapshot(cuda, torch_like):
    pool = cuda.MemPool()
    before = pool.id[0], pool.use_count(), pool.snapshot()
    with cuda.use_mem_pool(pool):
        inside = torch_like.empty(2 * MIB, dtype=torch_like.uint8, device="cuda")
        during = pool.use_count()
    outside = torch_like.empty(2 * MIB, dtype=torch_like.uint8, device="cuda")
    ids = [row["segment_pool_id"] == pool.id for row in cuda.memory_snapshot() if row["allocated_size"]]
    mine = cuda.memory_snapshot(pool.id)
    others = len(cuda.memory_snapshot((0, 9999)))
    found = sorted(ids), [row["allocated_size"] for row in mine], mine == pool.snapshot(), others
    return before, during, pool.use_count(), found, len([inside, outside])


def pools_are_numbered(cuda, torch_like):
    first, second = cuda.MemPool(), cuda.MemPool(use_on_oom=True, no_split=True)
    return second.id[1] - first.id[1], first.id[0], second.id[0]


def pool_releases_its_memory(cuda, torch_like):
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        tensor = torch_like.empty(2 * MIB, dtype=torch_like.uint8, device="cuda")
    del tensor
    cached = cuda.memory_reserved()
    del pool
    return cached, cuda.memory_reserved()


def pool_on_another_device(cuda, torch_like):
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool, 1):
        there = torch_like.empty(1000, device="cuda:1")
        here = torch_like.empty(1000, device="cuda:0")
    return [row["device"] for row in pool.snapshot()], there.numel() + here.numel()


def pool_in_use(cuda, torch_like):
    pool = cuda.MemPool()

    def enter_again():
        with cuda.use_mem_pool(pool):
            pass

    with cuda.use_mem_pool(pool):
        return outcome(cuda, enter_again)


def pools_on_missing_devices(cuda, torch_like):
    pool = cuda.MemPool()

    def use(device):
        with cuda.use_mem_pool(pool, device):
            pass

    return [outcome(cuda, use, device) for device in ("cuda", "cpu", 1.5)], outcome(cuda, use, 99)["error"]


def pools_with_invalid_allocators(cuda, torch_like):
    return outcome(cuda, cuda.MemPool, 5)["error"]


def no_split(cuda, torch_like):
    pool = cuda.MemPool(no_split=True)
    with cuda.use_mem_pool(pool):
        tensors = [torch_like.empty(2 * MIB, dtype=torch_like.uint8, device="cuda") for _ in range(2)]
    return len(tensors), [[block["size"] for block in row["blocks"]] for row in pool.snapshot()]


def native_allocator_cannot_be_replaced_late(cuda, torch_like):
    cuda.init()
    memory = cuda.memory
    return outcome(cuda, memory.change_current_allocator, memory._get_current_allocator())
