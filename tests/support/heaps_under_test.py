"""The heap allocator over a scripted port, with the interface of its model."""

from __future__ import annotations

import os
from collections.abc import Callable
from unittest import mock

import numpy as np

from forebay._base.config import HIGH_WATERMARK, LOW_WATERMARK
from forebay._core import METRICS, Block
from forebay.records.model import BLOCK, SEGMENT, State
from forebay.runtime.allocator import heap_allocator
from forebay.runtime.allocator.heap_allocator import HeapAllocator
from forebay.spi import DeviceProps, Heaps
from support.model.heap_buffers import Row
from support.model.heap_tables import HeapLayout
from support.scripted_port import ScriptedPort, ScriptedQueue

__all__ = ["HeapsUnderTest"]

_UNLIMITED = 1 << 49  # bytes; the capacity of a device that never runs out
_COUNTED = ("allocation", "allocated_bytes", "active_bytes", "segment", "reserved_bytes")
_STATES = {State.LIVE: "live", State.PENDING_FREE: "waiting"}


class HeapsUnderTest:
    """One device with queues 0 to 7. `others`, `refusals` and `callbacks` are those of the model."""

    def __init__(
        self,
        recommended: int,
        longest: int,
        *,
        unified: bool = True,
        alignment: int = 256,
        high: float | None = None,
        low: float | None = None,
        capacity: int | None = None,
    ) -> None:
        heaps = Heaps(recommended, longest, unified, alignment)
        self.unified = unified
        self.port = ScriptedPort(DeviceProps("mps", 0, "scripted", recommended, heaps=heaps), capacity or _UNLIMITED)
        self.queues = {handle: ScriptedQueue(handle) for handle in range(8)}
        ratios = {HIGH_WATERMARK.name: high, LOW_WATERMARK.name: low}
        with mock.patch.dict(os.environ, {name: str(ratio) for name, ratio in ratios.items() if ratio is not None}):
            self.allocator = HeapAllocator("mps:0", self.port, heaps, self.queues)
        self.allocator.explains_oom = False
        self._live: set[Block] = set()  # keeps the blocks from being freed
        self.callbacks: list[Callable[[], bool]] = self.allocator.free_memory_callbacks

    # Device state set by the test

    @property
    def others(self) -> int:
        return self.port.others

    @others.setter
    def others(self, nbytes: int) -> None:
        self.port.others = nbytes
        self.allocator.update_other_usage()  # the model does so in every call

    @property
    def refusals(self) -> int:
        return self.port.refusals

    @refusals.setter
    def refusals(self, n: int) -> None:
        self.port.refusals = n

    def work(self, queue: int) -> None:
        self.queues[queue].work()

    def finish(self, *queues: int) -> None:
        for queue in queues:
            self.queues[queue].finish()

    # Operations

    def allocate(self, nbytes: int, queue: int = 0, usage: str | None = None) -> Block:
        block = self.allocator.allocate_for(nbytes, queue, usage) if usage else self.allocator.allocate(nbytes, queue)
        self._live.add(block)
        return block

    def free(self, block: Block) -> None:
        self._live.remove(block)
        block.free()

    def use(self, block: Block, queue: int) -> None:
        block.record_stream(queue)

    def process_pending_frees(self) -> None:
        self.allocator._process_pending_frees()

    def empty(self) -> None:
        self.allocator.empty()

    def set_high(self, ratio: float) -> None:
        self.allocator.set_memory_fraction(ratio)

    # State

    def check_invariants(self) -> str | None:
        return self.allocator.check_invariants()

    def statistics(self) -> dict[str, int]:
        counts = np.reshape(self.allocator.counts(), (len(METRICS), -1, 4))[:, 0]
        parts = ("current", "peak", "allocated", "freed")
        found = {
            f"{key}.{part}": int(number)
            for key in _COUNTED
            for part, number in zip(parts, counts[METRICS.index(key)], strict=True)
        }
        return found | {"driver": self.allocator.driver_allocated()}

    def layout(self) -> HeapLayout:
        segments, blocks, *_ = self.allocator.tables(trace=False)
        heaps = np.frombuffer(segments, SEGMENT)
        pool_numbers = {(heap["pool"].item(), heap["small"].item() == 1) for heap in heaps}
        pieces = (self.allocator.evictable(small, pool_number, parts=True) for pool_number, small in pool_numbers)
        ages = {address: age for cached in pieces for address, _, _, age, *_ in cached}
        rows: list[list[Row]] = [[] for _ in heaps]
        for address, nbytes, _, _, heap, state in np.frombuffer(blocks, BLOCK).tolist():
            name = _STATES.get(state, "cached" if address in ages else "gap")
            rows[heap].append((address - heaps[heap]["address"].item(), nbytes, name, ages.get(address, 0)))
        layout: HeapLayout = {}
        for (address, _, queue, _, small, pool_number, _), tiles in zip(heaps.tolist(), rows, strict=True):
            number, nbytes = self.port.held[address]
            layout.setdefault((queue, self._pool_name(pool_number, small == 1)), []).append((number, nbytes, tiles))
        return {pool: sorted(found) for pool, found in layout.items()}

    def _pool_name(self, pool_number: int, small: bool) -> str:
        default, other = ("shared", "private") if self.unified else ("private", "shared")
        names = {0: default, heap_allocator._OTHER_MODE: other}
        return f"{names[pool_number]} {'small' if small else 'large'}" if pool_number in names else "scalar"
