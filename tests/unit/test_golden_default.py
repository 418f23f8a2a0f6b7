"""What the real PyTorch 2.15 allocator did with its default settings, done again by the pool and the plainest ladder.

The recordings in tests/data/torch-golden hold, after an operation, the address, the statistics and every segment and
block. The device they ran on was a pretended one: lowest address first, in steps of 2 MiB, its queues held by hand.
"""

from __future__ import annotations

import json
import lzma
from collections import deque

import numpy as np
import pytest

from penstock._core import METRICS, Pool
from penstock.snapshot.model import BLOCK, SEGMENT

STEP = 2 << 20
ARENA = 0x100000000000  # recorded addresses are relative to the device's memory; 0 would be no address
MOVES = ("current", "peak", "allocated", "freed")
SHOWN = ("address", "total_size", "stream", "segment_type", "blocks")
KINDS = ("all", "small_pool", "large_pool")
STATES = ("inactive", "active_allocated", "active_pending_free")


class Device:
    """Memory, and queues on which work is done at once, unless it was queued while they are held."""

    def __init__(self, total):
        self.total = total
        self.taken = {}  # address to size
        self.failures = 0  # how many reservations to refuse
        self.held = False
        self.recorded = self.before_hold = 0  # marks
        self.done = {}  # queue to the last mark it was made to reach

    @property
    def used(self):
        return sum(self.taken.values())

    def reserve(self, nbytes):
        self.failures -= (refused := self.failures > 0)
        if refused or self.used + nbytes > self.total:
            return None
        address = ARENA
        for taken in sorted(self.taken):
            if taken - address >= nbytes:
                break
            address = taken + self.taken[taken]
        self.taken[address] = -(-nbytes // STEP) * STEP
        return address

    def mark(self, queue):
        self.recorded += 1
        return queue, self.recorded

    def reached(self, queue, mark):
        return not self.held or mark <= max(self.before_hold, self.done.get(queue, 0))

    def finish(self, queues):
        self.done.update(dict.fromkeys(queues, self.recorded))


class Replay(Pool):
    """One recording's operations; `_refill` is PyTorch's way to memory: a new segment, after a flush, or none."""

    def __init__(self, total, queues):
        self.device, self.queues = Device(total), range(queues)
        self.live = {}
        self.marks = {queue: deque() for queue in self.queues}  # of blocks given back while others use them
        self.missing = {}  # marks that a waiting block still needs
        self.limit = None

    def _defer(self):
        for token, queues in self.deferred():
            self.missing[token] = len(queues)
            for queue in queues:
                self.marks[queue].append((token, self.device.mark(queue)))

    def settle_reached(self):
        for marks in self.marks.values():
            while marks and self.device.reached(*marks[0][1]):
                token, _ = marks.popleft()
                self.missing[token] -= 1
                if self.missing[token] == 0:
                    self.settle(token)

    def flush(self):
        self.device.finish(queue for queue, marks in self.marks.items() if marks)
        self.settle_reached()
        for address, _ in self.evictable():
            self.evict(address)
            del self.device.taken[address]
            self.device.finish(self.queues)

    def reserve(self, nbytes, queue):
        size, small = self.segment_size(nbytes)
        if self.limit is not None and self.current(METRICS.index("reserved_bytes")) + size > self.limit:
            return None
        address = self.device.reserve(size)
        if address is not None:
            self.adopt(address, size, queue, small)
            return self.take(nbytes, queue)
        return None

    def _refill(self, nbytes, queue):
        block = self.reserve(nbytes, queue)
        if block is None:
            self.flush()
            block = self.reserve(nbytes, queue)
        if block is None:
            raise MemoryError
        return block

    def do(self, op, id=None, size=0, stream=None, n=0, fraction=1.0):  # noqa: A002 - the recording's word
        """Performs an operation; what it says back is the address of a block."""
        match op:
            case "alloc":
                self.settle_reached()
                try:
                    self.live[id] = block = self.allocate(size, stream or 0)
                except MemoryError:
                    return {"error": "torch.OutOfMemoryError"}
                return {"addr": f"d0+{block.address - ARENA:#x}"}
            case "free" | "record_stream" if id not in self.live:
                return {"skipped": "not live"}
            case "free":
                self.live.pop(id).free()
            case "record_stream":
                self.live[id].used_on(stream)
            case "empty_cache":
                self.flush()
            case "hold":
                self.device.held, self.device.before_hold = True, self.device.recorded
            case "release" if stream is None:
                self.device.held = False
            case "release" | "synchronize":
                self.device.finish(self.queues if stream is None else [stream])
            case "fail_next":
                self.device.failures = n
            case "set_fraction":
                self.limit = int(fraction * self.device.total) if fraction < 1 else None
            case "reset_peak":
                self.reset_peaks()
            case "reset_accumulated":
                self.reset_accumulated()
            case "snapshot" | "summary" | "mem_get_info":
                pass
            case _:
                raise NotImplementedError(op)
        return {}

    def statistics(self):
        numbers = iter(self.counts())
        names = [f"{metric}.{kind}.{what}" for metric in METRICS for kind in KINDS for what in MOVES]
        return dict(zip(names, numbers, strict=True))

    def map(self):
        segments, blocks = (np.frombuffer(t, d) for t, d in zip(self.tables(), (SEGMENT, BLOCK), strict=False))
        return [
            {
                "address": f"d0+{int(segment['address']) - ARENA:#x}",
                "total_size": int(segment["nbytes"]),
                "stream": int(segment["queue"]),
                "segment_type": "small" if segment["small"] else "large",
                "blocks": [
                    {
                        "offset": int(block["address"] - segment["address"]),
                        "size": int(block["nbytes"]),
                        "requested_size": int(block["requested"]),
                        "state": STATES[block["state"]],
                    }
                    for block in blocks[blocks["segment"] == number]
                ],
            }
            for number, segment in enumerate(segments)
        ]


@pytest.mark.parametrize(
    ("name", "operations", "records"),
    [("small", 18, 18), ("random_default", 600, 600), ("long_default", 6000, 246)],
)
def test_a_recording_is_done_again_to_the_byte(root, name, operations, records):
    with lzma.open(root / f"tests/data/torch-golden/{name}.jsonl.xz", "rt") as lines:
        header, *recording = map(json.loads, lines)
    config = header["header"]["config"]
    replay = Replay(config["total_mb"] << 20, config.get("streams", 2))
    stats, compared = {}, 0
    for entry in recording:
        result = replay.do(**entry["op"])
        if "result" not in entry:  # done, and not recorded
            continue
        where = f"{name}, operation {entry['i']}: {entry['op']}"
        stats |= entry.get("stats") or entry["stats_delta"]
        assert {k: v for k, v in entry["result"].items() if k in ("addr", "error", "skipped")} == result, where
        assert [replay.device.used] == entry["device_used"], where
        ours = replay.statistics()
        assert {name: stats[name] for name in ours} == ours, where
        assert [{key: segment[key] for key in SHOWN} for segment in entry["segments"]] == replay.map(), where
        compared += 1
    assert (operations, records) == (len(recording), compared)
    assert replay.broken() is None
