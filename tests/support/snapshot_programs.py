"""Programs on a simulated device, for what is recorded of them."""

from __future__ import annotations

import pickle
import random
from typing import Any

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
    """Takes and gives back at random, on several streams and in private pools; its history begins at step `begin`.

    Memory runs out now and then; the program catches it, frees half of what it has and goes on.
    """  # fmt: skip
    choose, gpu = random.Random(seed), simulate.Device(total, settings, index=index)
    private = [gpu.new_pool() for _ in range(pools)]
    held: list[int] = []

    def take() -> int:
        nbytes, stream = int(2 ** choose.uniform(9, 27)), choose.randrange(streams)
        if private and choose.random() < 0.4:
            with gpu.use_pool(choose.choice(private)):
                return gpu.allocate(nbytes, stream)
        return gpu.allocate(nbytes, stream)

    def give() -> None:
        address = held.pop(choose.randrange(len(held)))
        if choose.random() < 0.1:
            gpu.record_stream(address, choose.randrange(streams))
        gpu.free(address)

    for step in range(steps):
        if step == begin:
            gpu.record_history(context=None, max_entries=entries)
        what = choose.random()
        if what > 0.995:
            gpu.empty_cache()
        elif what > 0.52 and held:
            give()
        else:
            try:
                held.append(take())
            except OutOfMemory:
                for _ in range(len(held) // 2):
                    give()
    assert gpu.broken() is None
    return gpu.snapshot()


def dumped(value: Any, protocol: int = pickle.DEFAULT_PROTOCOL) -> bytes:
    """As torch.cuda.memory._dump_snapshot writes it."""
    return pickle.dumps(value, protocol)
