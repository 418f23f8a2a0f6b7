"""MemPool: first use, arguments, attributes, and caching_allocator_disabled."""

from __future__ import annotations

from support.on_oracle import outcome

FRESH_PROCESS = True


def first_use(cuda, torch_like):
    before = cuda.is_initialized()
    pool = cuda.MemPool()
    return before, cuda.is_initialized(), cuda.memory_reserved(), type(pool).__name__


def arguments(cuda, torch_like):
    def made(*positional, **named):
        pool = cuda.MemPool(*positional, **named)
        return type(pool.id).__name__, [type(part).__name__ for part in pool.id], len(pool.id)

    return (
        outcome(cuda, made),
        [outcome(cuda, made, allocator)["error"] for allocator in (3, "x", cuda.MemPool)],
        outcome(cuda, made, None),
        [outcome(cuda, made, use_on_oom=flag) for flag in (True, False, None, 1, 0)],
        [outcome(cuda, made, use_on_oom=flag)["error"] for flag in ("x", [], {})],
        [outcome(cuda, made, no_split=flag) for flag in (True, False, None, 1, 1.5)],
        outcome(cuda, made, nothing=1)["error"],
    )


def attributes(cuda, torch_like):
    pool = cuda.MemPool()
    return (
        outcome(cuda, setattr, pool, "id", (0, 1))["error"],
        pool.id[0] == 0,
        outcome(cuda, pool.use_count),
        len(pool.snapshot()),
        cuda.MemPool().id[1] - pool.id[1],
    )


def uses(cuda, torch_like):
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        made = torch_like.empty(1000, device="cuda")
        inside = pool.use_count(), cuda.memory_reserved()
    after = pool.use_count(), len(pool.snapshot())
    other = torch_like.empty(1000, device="cuda")
    del made
    return inside, after, cuda.memory_reserved(), other.numel()


def pools_of_wrong_types(cuda, torch_like):
    def use(*arguments):
        with cuda.use_mem_pool(*arguments):
            pass

    cuda.init()
    pool = cuda.MemPool()
    return (
        [outcome(cuda, use, pool, device) for device in (None, 0, torch_like.device("cuda:0"))],
        [outcome(cuda, use, pool, device)["error"] for device in ("abc", "cpu", 1.5, 9)],
        outcome(cuda, use, pool),
    )


def cache_disabled_after_a_pool(cuda, torch_like):
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        torch_like.empty(1000, device="cuda")
    with cuda.caching_allocator_disabled():
        before = cuda.memory_reserved()
        made = torch_like.empty(1 << 20, dtype=torch_like.uint8, device="cuda")
        during = cuda.memory_reserved() - before
        del made
        return during, cuda.memory_reserved() - before


def cache_disabled_before_a_pool(cuda, torch_like):
    with cuda.caching_allocator_disabled():
        pool = cuda.MemPool()
        with cuda.use_mem_pool(pool):
            made = torch_like.empty(1000, device="cuda")
            during = cuda.memory_reserved(), cuda.memory_allocated()
        del made
    return during, cuda.memory_reserved(), outcome(cuda, torch_like.empty, 1000, device="cuda")


def switches(cuda, torch_like):
    cuda.init()
    return [
        (outcome(cuda, cuda.caching_allocator_enable, flag), torch_like.empty(1000, device="cuda").numel())
        for flag in (True, False, 1, 0, None, "x", [])
    ]
