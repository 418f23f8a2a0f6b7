"""Random programs on a simulated device, as sources of recorded histories."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

from forebay import OutOfMemory, simulate

MIB = 1 << 20


def program(
    seed: int = 1,
    settings: str = "",
    *,
    steps: int = 1500,
    entries: int = 1 << 40,
    begin: int = 0,
    pools: int = 0,
    streams: int = 1,
    total: int = 3 << 30,
    index: int = 0,
) -> dict[str, Any]:
    """Return the snapshot of a program that allocates and frees at random, on several streams and in private pools.

    The history begins at step `begin`. When memory runs out, the program frees half of its blocks and continues.
    """  # fmt: skip
    rng, gpu = random.Random(seed), simulate.Device(total, settings, index=index)
    private = [gpu.new_pool() for _ in range(pools)]
    live: list[int] = []

    def allocate() -> int:
        nbytes, stream = int(2 ** rng.uniform(9, 27)), rng.randrange(streams)
        if private and rng.random() < 0.4:
            with gpu.use_pool(rng.choice(private)):
                return gpu.allocate(nbytes, stream)
        return gpu.allocate(nbytes, stream)

    def free_random() -> None:
        address = live.pop(rng.randrange(len(live)))
        if rng.random() < 0.1:
            gpu.record_stream(address, rng.randrange(streams))
        gpu.free(address)

    for step in range(steps):
        if step == begin:
            gpu.record_history(context=None, max_entries=entries)
        draw = rng.random()
        if draw > 0.995:
            gpu.empty_cache()
        elif draw > 0.52 and live:
            free_random()
        else:
            try:
                live.append(allocate())
            except OutOfMemory:
                for _ in range(len(live) // 2):
                    free_random()
    assert gpu.broken() is None
    return gpu.snapshot()


def without_allocations() -> simulate.Device:
    """Return a device of 1 GiB whose history has a free of 30 MiB and no allocation."""
    gpu = simulate.Device(1 << 30)
    address = gpu.allocate(30 * MIB)
    gpu.record_history()
    gpu.free(address)
    return gpu


def fragmented(*failing: int, settings: str = "") -> simulate.Device:
    """Return a device of 96 MiB with 2 MiB live in a segment of 40, on which requests of these MiB have failed."""
    gpu = simulate.Device(96 * MIB, settings)
    gpu.record_history()
    gpu.free(gpu.allocate(40 * MIB))
    gpu.allocate(2 * MIB)
    for mib in failing:
        with pytest.raises(OutOfMemory):
            gpu.allocate(mib * MIB)
    return gpu


def dumped(value: Any, protocol: int = pickle.DEFAULT_PROTOCOL) -> bytes:
    """Return the pickle that torch.cuda.memory._dump_snapshot would write."""
    return pickle.dumps(value, protocol)


def minimal_snapshot(**changes: Any) -> dict[str, Any]:
    """Return a snapshot of a segment with one live block and its history, as PyTorch's dicts."""
    frames = [{"filename": "net.py", "line": 7, "name": "forward"}, {"filename": "train.py", "line": 3, "name": "main"}]
    segment = {
        "device": 0, "address": 1 << 32, "total_size": 2 * MIB, "allocated_size": 512, "active_size": 512,
        "requested_size": 100, "stream": 5, "segment_type": "small", "segment_pool_id": (0, 3), "is_expandable": False,
        "frames": [],
        "blocks": [
            {"address": 1 << 32, "size": 512, "requested_size": 100, "state": "active_allocated", "frames": frames},
            {"address": (1 << 32) + 512, "size": 2 * MIB - 512, "requested_size": 0, "state": "inactive", "frames": []},
        ],
    }  # fmt: skip
    entry = {"addr": 1 << 32, "stream": 5, "time_us": 1_700_000_000_000_000, "pool_id": (0, 3), "frames": frames}
    trace = [entry | {"action": "segment_alloc", "size": 2 * MIB}, entry | {"action": "alloc", "size": 100}]
    return {"segments": [segment], "device_traces": [trace], "external_annotations": []} | changes
