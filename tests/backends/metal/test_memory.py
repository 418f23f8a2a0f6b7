"""The heap policy on Metal's heaps: storage modes, watermarks, statistics, small and large machines."""

from __future__ import annotations

import gc
import random
from dataclasses import replace

import pytest
from softmetal.machines import GIB, MACHINES, MIB, Machine

import forebay
from forebay import mps, profiles
from forebay.backends import override_driver
from forebay.backends.metal.driver import MetalDriver
from forebay.errors import OutOfMemory
from forebay.runtime.lifecycle.emulation import reset_kind


@pytest.fixture
def device(mac):
    with override_driver(MetalDriver()):
        yield mac
        reset_kind("mps")


@pytest.fixture
def machine(become):
    """Return a function that makes the stand-in another machine before the device is opened."""
    opened = []

    def use(name):
        become(name)
        context = override_driver(MetalDriver())
        context.__enter__()
        opened.append(context)

    yield use
    reset_kind("mps")
    for context in opened:
        context.__exit__(None, None, None)


def opened():
    return forebay.zeros(1, device="mps").raw_storage.opened


@pytest.mark.parametrize(
    ("name", "total", "recommended"),
    [("m1-8gib", 8 * GIB, 5726623061), ("m2-ultra-192gib", 192 * GIB, 154618822656), ("intel", 4 * GIB, 4 * GIB)],
)
def test_properties_are_those_of_the_machine(machine, name, total, recommended):
    machine(name)
    props = opened().port.props
    assert props.total_bytes == total
    assert mps.recommended_max_memory() == recommended == props.heaps.recommended
    assert props.heaps.unified == props.queue_visible == (name != "intel")
    assert props.details["family"]


def test_buffer_longer_than_metals_is_refused(device):
    with pytest.raises(RuntimeError, match="Invalid buffer size"):
        forebay.empty(5 * GIB, dtype="uint8", device="mps")


def test_more_than_the_high_watermark_is_refused(device, monkeypatch):
    mps.set_per_process_memory_fraction(0.25)
    kept = [forebay.empty(1000 * MIB, dtype="uint8", device="mps")]
    with pytest.raises(OutOfMemory, match="on shared pool"):
        kept.append(forebay.empty(1000 * MIB, dtype="uint8", device="mps"))
    del kept
    assert forebay.empty(1000 * MIB, dtype="uint8", device="mps").numel() == 1000 * MIB


def test_large_machine_allocates_more_than_a_small_one_has(machine):
    machine("m2-ultra-192gib")
    kept = [forebay.empty(20 * GIB, dtype="uint8", device="mps") for _ in range(3)]
    assert mps.current_allocated_memory() >= 60 * GIB
    assert mps.driver_allocated_memory() >= 60 * GIB
    del kept
    mps.empty_cache()
    assert mps.driver_allocated_memory() < GIB


def test_private_usage_is_private_memory(device):
    allocator = opened().allocator
    port = allocator.port
    blocks = {usage: allocator.allocate_for(4 * MIB, 0, usage) for usage in ("shared", "private")}
    modes = {usage: port.regions.find(block.address).shared for usage, block in blocks.items()}
    assert modes == {"shared": True, "private": False}


def test_shared_usage_of_a_gpu_with_its_own_memory_is_shared(machine):
    machine("intel")
    allocator = opened().allocator
    block = allocator.allocate_for(4 * MIB, 0, "shared")
    assert allocator.port.regions.find(block.address).shared
    assert not allocator.port.regions.find(allocator.allocate_for(4 * MIB, 0, "").address).shared


def test_host_alias_shares_the_memory(device):
    tensor = forebay.full((1000,), 3.0, device="mps")
    mps.synchronize()
    alias = mps._host_alias_storage(tensor).numpy().view("float32")
    assert (alias == 3).all()
    alias[:] = 4
    assert tensor.tolist() == [4.0] * 1000


def test_statistics_equal_a_recount_and_nothing_is_lost(device):
    """Random allocations: the counters equal the sums over the snapshot, and Metal's bytes those of the heaps."""
    chance, kept = random.Random(11), []
    found = opened()
    for _ in range(300):
        if kept and chance.random() < 0.5:
            kept.pop(chance.randrange(len(kept)))
        else:
            size = chance.choice([8, 4000, MIB, 3 * MIB, 12 * MIB, 40 * MIB, 600 * MIB])
            kept.append(forebay.empty(size, dtype="uint8", device="mps"))
        if chance.random() < 0.02:
            mps.empty_cache()
    mps.synchronize()
    segments = forebay.memory.memory_snapshot("mps")["segments"]
    live = sum(b["size"] for each in segments for b in each["blocks"] if b["state"] == "active_allocated")
    stats = forebay.memory.memory_stats("mps")
    assert stats["allocated_bytes.all.current"] == live
    heaps = found.port._segments
    assert stats["reserved_bytes.all.current"] == sum(each["total_size"] for each in segments)
    assert stats["reserved_bytes.all.current"] == sum(region.nbytes for region in heaps.values())
    free, total = found.port.memory_info()
    assert total - free == sum(region.nbytes for region in heaps.values())
    kept.clear()
    gc.collect()
    for _ in range(3):
        mps.empty_cache()
    assert device.live("MTLHeap") == len(heaps) <= 1


def _play() -> dict[str, int]:
    """Allocate and free at random, and return the statistics."""
    chance, kept = random.Random(23), []
    for _ in range(400):
        if kept and chance.random() < 0.5:
            kept.pop(chance.randrange(len(kept)))
        else:
            size = chance.choice([8, 4000, MIB, 3 * MIB, 12 * MIB, 40 * MIB, 600 * MIB])
            try:
                kept.append(forebay.empty(size, dtype="uint8", device="mps"))
            except OutOfMemory:
                kept.clear()
        if chance.random() < 0.02:
            mps.empty_cache()
    mps.synchronize()
    kept.clear()
    found = forebay.memory.memory_stats("mps")
    return {name: number for name, number in found.items() if isinstance(number, int)}


def test_heap_policy_is_that_of_an_emulated_device(machine, monkeypatch):
    """The same program has the same statistics, of which some exceed the watermarks."""
    monkeypatch.setenv("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "0.3")
    monkeypatch.setenv("PYTORCH_MPS_LOW_WATERMARK_RATIO", "0.2")
    properties = profiles.load("apple_m1").properties
    with forebay.emulate("mps", profile="apple_m1"):
        expected = _play()
    assert expected["num_ooms"] > 0
    gpu = replace(
        MACHINES["m1-8gib"].gpus[0],
        memory=properties["total_memory"],
        working_set=properties["recommended_max_memory"],
        max_buffer=properties["max_buffer_length"],
        heap_alignment=properties["buffer_alignment"],
    )
    machine(Machine((gpu,), properties["total_memory"]))
    assert _play() == expected
