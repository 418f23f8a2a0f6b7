"""Blocks that pin segments and pages that are mostly free."""

from __future__ import annotations

from support.snapshot_programs import MIB, dumped

from forebay import simulate
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.replay.memory_state import memory_state
from forebay.snapshot.replay.pinning import find_pins


def pins_of(gpu):
    (snapshot,) = torch_pickle.parse(dumped(gpu.snapshot()))
    return find_pins(snapshot, memory_state(snapshot))


def leave_small_block(gpu, nbytes: int, stream: int = 0) -> int:
    """Return a small block in a segment that held a large one."""
    gpu.free(gpu.allocate(nbytes, stream))
    return gpu.allocate(2 * MIB, stream)


def keep_large_block(gpu) -> int:
    return gpu.allocate(64 * MIB)


def test_small_block_in_a_large_segment_pins_it():
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    held = [leave_small_block(gpu, 60 * MIB), leave_small_block(gpu, 40 * MIB, 3), keep_large_block(gpu)]
    first, second = pins_of(gpu)
    assert first.label.endswith(" leave_small_block")
    assert (first.queue, first.pool, first.units, first.blocks) == (0, 0, 1, 1)
    assert (first.free_bytes, first.held_bytes) == (58 * MIB, 2 * MIB)
    assert (second.queue, second.free_bytes) == (3, 38 * MIB)
    assert len(held) == 3


def test_private_pools_are_kept_apart():
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    held = [leave_small_block(gpu, 60 * MIB)]
    with gpu.use_pool(gpu.new_pool()):
        held.append(leave_small_block(gpu, 60 * MIB))
    assert sorted(pins.pool for pins in pins_of(gpu)) == [0, 1]
    assert len(held) == 2


def test_segment_is_counted_for_the_site_with_the_most_bytes():
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    held = [leave_small_block(gpu, 60 * MIB), gpu.allocate(9 * MIB)]
    (pins,) = pins_of(gpu)
    assert pins.label.endswith(" test_segment_is_counted_for_the_site_with_the_most_bytes")
    assert (pins.blocks, pins.held_bytes, pins.free_bytes) == (2, 11 * MIB, 49 * MIB)
    assert len(held) == 2


def test_only_the_page_of_a_block_is_pinned_in_expandable_segments():
    gpu = simulate.Device(1 << 30, "expandable_segments:True")
    gpu.record_history()
    held = leave_small_block(gpu, 100 * MIB)
    (pins,) = pins_of(gpu)
    assert (pins.units, pins.free_bytes, pins.held_bytes) == (1, 18 * MIB, 2 * MIB)
    gpu.free(held)
    assert pins_of(gpu) == []


def test_full_segments_are_not_pinned():
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    held = keep_large_block(gpu)
    assert pins_of(gpu) == []
    gpu.free(held)
