"""Reference model of PyTorch's pinned memory cache: whole blocks in buckets, never split or merged."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["ModelPinned"]

_MIB = 1 << 20
_PARTS = ("current", "peak", "allocated", "freed")


@dataclass
class _Block:
    address: int
    size: int
    users: dict[int, None] = field(default_factory=dict)  # streams that copy from or to the block, in order
    marks: int = 0

    @property
    def bucket(self) -> int:
        return (self.size - 1).bit_length()


class ModelPinned:
    """Pinned memory cache. Addresses are block numbers, as host addresses have no influence."""

    def __init__(self, settings: str = "") -> None:
        self.round_up_to = self.cache_up_to = 1 << 64
        self.apply_settings(settings)
        self.last_address = 0
        self.live: dict[int, _Block] = {}
        self.free_blocks: list[_Block] = []  # the most recently freed one last
        self.pending: list[tuple[int, int, _Block]] = []  # stream, mark and block, oldest first
        self.counters: dict[tuple[str, int], list[int]] = {}
        self.calls = {"num_host_alloc": 0, "num_host_free": 0}
        self.marks = self.before_hold = 0
        self.held = False
        self.done: dict[int, int] = {}

    def apply_settings(self, settings: str) -> None:
        for key, megabytes in re.findall(r"pinned_max_(round_threshold|cached_size)_mb:(\d+)", settings):
            setattr(self, "cache_up_to" if key == "cached_size" else "round_up_to", int(megabytes) * _MIB)

    def allocate(self, nbytes: int) -> int:
        if nbytes == 0:
            return 0
        self._process_pending()
        rounds_up = nbytes <= min(self.round_up_to, self.cache_up_to)
        size = 1 << (nbytes - 1).bit_length() if rounds_up else nbytes
        fitting = [b for b in self.free_blocks if b.bucket == (size - 1).bit_length() and b.size >= size]
        if fitting:
            block = fitting[-1]
            self.free_blocks.remove(block)
        else:
            self.last_address += 1
            block = _Block(self.last_address, size)
            self._count_allocation(block, 1)
        self._count_active(block, 1)
        self.live[block.address] = block
        return block.address

    def record_stream(self, address: int, stream: int) -> None:
        if address:
            self.live[address].users[stream] = None

    def free(self, address: int) -> None:
        if not address:
            return
        block = self.live.pop(address)
        for stream in block.users:
            self.marks += 1
            block.marks += 1
            self.pending.append((stream, self.marks, block))
        block.users.clear()
        if not block.marks:
            self._reclaim(block)

    def empty_cache(self) -> None:
        self._process_pending()
        for block in self.free_blocks:
            self._count_allocation(block, -1)
        self.free_blocks.clear()

    def _process_pending(self) -> None:
        """Free completed blocks. All streams share one FIFO: an unfinished entry delays all later entries."""
        while self.pending:
            stream, mark, block = self.pending[0]
            if self.held and mark > max(self.before_hold, self.done.get(stream, 0)):
                return
            del self.pending[0]
            block.marks -= 1
            if not block.marks:
                self._reclaim(block)

    def _reclaim(self, block: _Block) -> None:
        self._count_active(block, -1)
        if block.size > self.cache_up_to:
            self._count_allocation(block, -1)
        else:
            self.free_blocks.append(block)

    def hold_events(self, level: int = 1) -> None:
        """Keep later marks unreached; with level 2, all marks."""
        self.held, self.before_hold = True, self.marks if level == 1 else 0
        if level == 2:
            self.done.clear()

    def release_events(self, stream: int | None = None) -> None:
        if stream is None:
            self.held = False
        else:
            self.synchronize(stream)

    def synchronize(self, stream: int | None = None) -> None:
        streams = {each for each, _, _ in self.pending} if stream is None else {stream}
        self.done.update(dict.fromkeys(streams, self.marks))

    def _count_active(self, block: _Block, sign: int) -> None:
        """Count per bucket: a total peak is the sum of the buckets' peaks, even of different times."""
        self._count("active_requests", block.bucket, sign)
        self._count("active_bytes", block.bucket, sign * block.size)

    def _count_allocation(self, block: _Block, sign: int) -> None:
        self._count("allocations", 0, sign)
        self._count("allocated_bytes", 0, sign * block.size)
        self.calls["num_host_alloc" if sign > 0 else "num_host_free"] += 1

    def _count(self, metric: str, bucket: int, change: int) -> None:
        counter = self.counters.setdefault((metric, bucket), [0, 0, 0, 0])
        counter[0] += change
        counter[1] = max(counter[:2])
        counter[2 if change > 0 else 3] += abs(change)

    def reset_peak_stats(self) -> None:
        for counter in self.counters.values():
            counter[1] = counter[0]

    def reset_accumulated_stats(self) -> None:
        for counter in self.counters.values():
            counter[2:] = 0, 0
        self.calls = dict.fromkeys(self.calls, 0)

    def stats(self) -> dict[str, int]:
        """Return `torch.cuda.host_memory_stats()` without the times."""
        found = dict(self.calls)
        for metric in ("active_bytes", "active_requests", "allocated_bytes", "allocations"):
            counters = [counter for (name, _), counter in self.counters.items() if name == metric]
            found |= {f"{metric}.{part}": sum(each[i] for each in counters) for i, part in enumerate(_PARTS)}
        return found
