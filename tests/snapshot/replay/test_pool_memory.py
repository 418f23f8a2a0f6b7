"""Free memory of private pools, with the site that reserved it."""

from __future__ import annotations

from support.snapshot_programs import MIB, dumped

from forebay import simulate
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.replay.memory_state import memory_state
from forebay.snapshot.replay.pool_memory import free_in_pools


def recorded(gpu):
    (snapshot,) = torch_pickle.parse(dumped(gpu.snapshot()))
    return snapshot


def test_pools_are_listed_by_their_free_memory():
    gpu = simulate.Device(1 << 30)
    gpu.record_history(stacks="python")
    pools = [gpu.new_pool() for _ in range(3)]
    for pool, mib in zip(pools, (30, 60, 90), strict=True):
        with gpu.use_pool(pool):
            blocks = [gpu.allocate(mib * MIB), gpu.allocate(mib * MIB)]
        gpu.free(blocks[0])
    with gpu.use_pool(pools[0]):
        gpu.allocate(30 * MIB)  # uses all of it
    gpu.free(gpu.allocate(200 * MIB))  # of no private pool
    snapshot = recorded(gpu)
    found = free_in_pools(snapshot, memory_state(snapshot))
    assert [(each.free_bytes, each.live_bytes) for each in found] == [(90 * MIB, 90 * MIB), (60 * MIB, 60 * MIB)]
    assert [each.name for each in found] == [str(pools[2]), str(pools[1])]
    assert all("test_pool_memory.py" in each.label for each in found)


def test_site_is_empty_without_stacks():
    gpu = simulate.Device(1 << 30)
    gpu.record_history(context=None)
    with gpu.use_pool(gpu.new_pool()):
        gpu.free(gpu.allocate(30 * MIB))
    snapshot = recorded(gpu)
    (found,) = free_in_pools(snapshot, memory_state(snapshot))
    assert (found.label, found.free_bytes, found.live_bytes) == ("", 30 * MIB, 0)
