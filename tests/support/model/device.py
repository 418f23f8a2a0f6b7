"""Reference model of a simulated device, with the interface of `forebay.simulate.Device`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from forebay.errors import OutOfMemory
from forebay.runtime.allocator.torch_iteration_order import pool_set
from support.golden.files import as_forebay_text
from support.model.blocks import Block, PrivatePool, Segment
from support.model.cache import Cache, Request
from support.model.device_memory import Memory
from support.model.expandable_segments import grow
from support.model.history import snapshot_segments
from support.model.pool import MIB
from support.model.settings import UNLIMITED, Settings, format_size

__all__ = ["ModelDevice"]

_ADVICE = {
    False: " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    " to avoid fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
    "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)",
    True: " expandable_segments is enabled. If instead the process is running out of virtual address space (VSZ),"
    " expandable segments may be over-reserving VA (each segment reserves ~9/8 of device memory, times the number of"
    " streams); reduce it via PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve /"
    " expandable_segments_reserve_by_class.",
}


class ModelDevice:
    """One device. Error texts are PyTorch's, with forebay's name in place of PyTorch's."""

    def __init__(self, total_memory: int, settings: str = "", other_used: int = 0, *, index: int = 0) -> None:
        self.index = index
        self.settings = Settings()
        self.memory = Memory(total_memory, other_used, index)
        self.cache = Cache(self.memory, self.settings, index)
        self.statistics, self.streams = self.cache.statistics, self.cache.streams
        self.pools_made = 0
        self.use_on_oom = pool_set()
        self.graphs_made = 0
        self.active: list[tuple[PrivatePool, int | None]] = []  # and the stream it applies to; None: all
        self.settings.read(settings)
        limit = self.settings.max_split_size
        self.max_split_size = -1 if limit == UNLIMITED else limit  # reported by `stats`, regardless of later settings
        self.set_memory_fraction(self.settings.per_process_memory_fraction)

    def allocate(self, nbytes: int, stream: int = 0) -> int:
        if nbytes == 0:
            return 0
        if nbytes >= 1 << 60:
            raise OutOfMemory("CUDA out of memory. Tried to allocate more than 1EB memory.")
        cache, size = self.cache, self.settings.rounded(nbytes)
        if stream not in cache.captured:
            cache.process_pending_frees()
        owners = [owner for owner, of in self.active if of in {None, stream}]
        owner: Cache | PrivatePool = owners[-1] if owners else cache
        request = Request(nbytes, stream, owner.small if size <= MIB else owner.large, self.settings)
        found = cache.search(request, request.pool) or self._grow(request)
        if found is None:
            raise self._out_of_memory(request)
        return cache.allocate_block(request, *found)

    def _grow(self, request: Request) -> tuple[Segment, Block] | None:
        """Run the recovery steps when no free block fits, cheapest first."""
        if self.cache.collects_garbage:
            self.cache.collect_garbage()
        if (found := grow(self.cache, request)) or (found := self._borrow(request)):
            return found
        if self.cache.release_oversize(request) and (found := grow(self.cache, request)):
            return found
        if request.stream in self.cache.captured:
            return None
        self.cache.release_all()
        self.statistics.calls["num_alloc_retries"] += 1
        return grow(self.cache, request)

    def _borrow(self, request: Request) -> tuple[Segment, Block] | None:
        """Return a free block of a private pool created with `use_on_oom`."""
        if request.pool.id != (0, 0):
            return None
        for owner in [self.cache.private[pool] for pool in self.use_on_oom]:
            if found := self.cache.search(request, owner.small if request.pool.small else owner.large):
                request.expandable = False
                return found
        return None

    def _out_of_memory(self, request: Request) -> OutOfMemory:
        free = self.memory.free
        self.cache.history.record_event("oom", free, request.size, request.stream, request.pool.id)
        self.statistics.calls["num_ooms"] += 1
        stats = self.stats()
        allocated, reserved = stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"]
        pools = [pool for owner in self.cache.private.values() for pool in (owner.small, owner.large)]
        private = sum(block.size for pool in pools for _, block in pool.free())
        message = (
            f"CUDA out of memory. Tried to allocate {format_size(request.segment_size)}. GPU {self.index} has a total"
            f" capacity of {format_size(self.memory.total)} of which {format_size(free)} is free. Including"
            f" non-PyTorch memory, this process has {format_size(self.memory.used + self.memory.other_used)} memory"
            " in use. "
        )
        if self.cache.limit is not None:
            message += f"{format_size(self.cache.limit)} allowed; "
        message += f"Of the allocated memory {format_size(allocated + private)} is allocated by PyTorch, "
        if private:
            message += f"with {format_size(private)} allocated in private pools (e.g., CUDA Graphs), "
        message += f"and {format_size(reserved - allocated - private)} is reserved by PyTorch but unallocated."
        message += self._advice(request)
        return OutOfMemory(
            as_forebay_text(message),
            wanted=request.segment_size,
            free=free,
            reserved=reserved,
            capacity=self.memory.total,
        )

    def _advice(self, request: Request) -> str:
        reserve = self.settings.reserved(self.memory.total)
        if not self.settings.expandable_segments or not reserve < request.segment_size <= self.memory.total:
            return _ADVICE[self.settings.expandable_segments]
        return (
            f" This allocation exceeds the expandable-segment reserve of {format_size(reserve)} for this stream, and a"
            " single allocation cannot span expandable segments. Raise PYTORCH_CUDA_ALLOC_CONF"
            " expandable_segments_reserve or expandable_segments_reserve_by_class (or unset it) so that a segment is"
            f" at least {format_size(request.segment_size)}."
        )

    def free(self, address: int) -> None:
        if address:
            self.cache.free(*self._live(address))

    def record_stream(self, address: int, stream: int) -> None:
        if address:
            segment, block = self._live(address)
            if stream not in (segment.stream, *block.users):
                block.users.append(stream)

    def _live(self, address: int) -> tuple[Segment, Block]:
        found = self.cache.find(address)
        if found is None:
            raise RuntimeError(f"invalid device pointer: {address:#x}")
        return found

    def empty_cache(self) -> None:
        self.cache.release_all()

    def set_memory_fraction(self, fraction: float) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        self.cache.limit = int(fraction * self.memory.total + 0.5) if fraction < 1 else None

    def apply_settings(self, settings: str) -> None:
        self.settings.read(settings)

    def reset_peak_stats(self) -> None:
        self.statistics.reset_peaks()

    def reset_accumulated_stats(self) -> None:
        self.statistics.reset_accumulated()

    # Control of the simulated environment

    def hold_events(self, level: int = 1) -> None:
        self.streams.hold(level)

    def release_events(self, stream: int | None = None) -> None:
        if stream is None:
            self.streams.hold(0)
        else:
            self.streams.wait(stream)

    def synchronize(self, stream: int | None = None) -> None:
        if stream is None:
            self.streams.wait_for_all()
        else:
            self.streams.wait(stream)

    def fail_next(self, n: int) -> None:
        self.memory.failures = n

    def set_other_used(self, nbytes: int) -> None:
        self.memory.other_used = nbytes

    def memory_info(self) -> tuple[int, int]:
        return self.memory.free, self.memory.total

    @property
    def device_used(self) -> int:
        """Return the bytes reserved from the device, for comparison with a trace."""
        return self.memory.used

    # Private pools

    def new_pool(self, *, use_on_oom: bool = False, no_split: bool = False) -> tuple[int, int]:
        self.pools_made += 1
        pool = (0, self.pools_made)
        self.cache.private[pool] = PrivatePool(pool, no_split)
        if use_on_oom:
            self.use_on_oom.add(pool)
        return pool

    @contextmanager
    def use_pool(self, pool: tuple[int, int]) -> Iterator[None]:
        self._push_pool(self.cache.private[pool], None)
        try:
            yield
        finally:
            self.cache.decref(self._pop_pool(pool))

    def _push_pool(self, owner: PrivatePool, stream: int | None) -> None:
        if owner.id in [of.id for of, _ in self.active]:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        owner.users += 1
        self.active.append((owner, stream))

    def _pop_pool(self, pool: tuple[int, int]) -> PrivatePool:
        entry = next(entry for entry in self.active if entry[0].id == pool)
        self.active.remove(entry)
        return entry[0]

    def release_pool(self, pool: tuple[int, int]) -> None:
        owner = self.cache.private[pool]
        self.cache.decref(owner)
        self.use_on_oom.discard(pool)
        if owner.users == 0:
            self.statistics.calls["num_sync_all_streams"] += 1
            self.cache.process_pending_frees(wait=True, only=owner)
            self.cache.release_private(owner)

    # Graph captures

    def begin_capture(self, stream: int, pool: tuple[int, int] | None = None) -> tuple[int, int]:
        """Route allocations of the stream to the graph's pool until `end_capture`. Return the pool id, (n, 0)."""
        if pool is None:
            self.graphs_made += 1
            pool = (self.graphs_made, 0)
            self.cache.private[pool] = PrivatePool(pool, users=0)
        self._push_pool(self.cache.private[pool], stream)
        self.cache.captured.append(stream)
        return pool

    def end_capture(self) -> None:
        stream = self.cache.captured.pop()
        self._pop_pool(next(owner.id for owner, of in self.active if of == stream))

    def release_capture(self, pool: tuple[int, int]) -> None:
        """Release a graph's pool, as `CUDAGraph.reset` does; its free memory is released by the next `empty_cache`."""
        self.cache.decref(self.cache.private[pool])

    # Statistics and history

    def stats(self) -> dict[str, int]:
        return self.statistics.flat() | {"max_split_size": self.max_split_size}

    def record_history(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = UNLIMITED,
        clear_history: bool = False,
        skip_actions: Sequence[str] = (),
    ) -> None:
        if enabled not in {"state", "all", None}:
            raise RuntimeError("expected state to be 'state', 'all', or None")
        if context not in {"state", "alloc", "all", None}:
            raise RuntimeError("expected context to be 'state', 'alloc', 'all', or None")
        if stacks not in {"python", "all"}:
            raise RuntimeError("expected stacks to be 'python', or 'all'")
        self.cache.history.record(enabled, max_entries, clear_history, skip_actions)

    def snapshot(self) -> dict[str, Any]:
        """Return a snapshot. Its own history entry appears in the next one. Other devices have empty traces."""
        segments = snapshot_segments(iter(self.cache), self.index)
        trace = [dict(entry) for entry in self.cache.history.entries]
        self.cache.history.record_event("snapshot", 0, sum(segment["active_size"] for segment in segments), 0, (0, 0))
        return {"segments": segments, "device_traces": [*([] for _ in range(self.index)), trace]}
