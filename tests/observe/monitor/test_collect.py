"""Figures of this process equal the statistics of its devices."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import forebay
from forebay.observe.monitor.collect import collect
from forebay.observe.monitor.live_stacks import LiveStacks

pytestmark = pytest.mark.usefixtures("clean")


def figures_of(device: str, stacks: int = 0):
    return next(each for each in collect(stacks).devices if each.device == device)


def test_figures_equal_the_statistics():
    kept = [forebay.empty(1000 * n, device="cpu") for n in range(1, 5)]
    del kept[0]
    found, stats = figures_of("cpu"), forebay.memory.memory_stats("cpu")
    assert (found.allocated, found.reserved, found.peak) == (
        stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"], stats["allocated_bytes.all.peak"],
    )  # fmt: skip
    assert (found.allocations, found.frees) == (stats["allocation.all.allocated"], stats["allocation.all.freed"])
    assert (found.retries, found.ooms) == (stats["num_alloc_retries"], stats["num_ooms"])
    assert found.streams >= 1
    assert collect().pid == os.getpid()
    assert collect().resident > 10 << 20


def test_stacks_are_those_of_live_blocks_with_a_stack():
    before = forebay.empty(5000, device="cpu")
    forebay.memory.record_history(1000, device="cpu")
    try:
        kept = [forebay.empty(1 << 20, dtype="uint8", device="cpu") for _ in range(3)]
        dropped = forebay.empty(1 << 20, dtype="uint8", device="cpu")
        del dropped
        found = figures_of("cpu", 5).stacks
        assert (sum(found.live[1::3]), sum(found.live[2::3])) == (3 << 20, len(kept))  # of one stack or several
        assert any("test_collect.py" in text for text in found.strings)
        assert figures_of("cpu").stacks == LiveStacks()
        others = [forebay.empty(100, device="cpu"), forebay.empty(300, device="cpu")]
        (_, nbytes, blocks), found = figures_of("cpu", 1).stacks.live, figures_of("cpu", 1).stacks
        assert (nbytes + found.other_bytes, blocks + found.other_blocks) == ((3 << 20) + 1600, 5)
    finally:
        forebay.memory.record_history(None, device="cpu")
    del before, others


def test_sensors_of_emulated_devices_and_capacity():
    with forebay.emulate("cuda", count=1, profile="h200"):
        assert not [each for each in collect().devices if each.device.startswith("cuda")]  # opens no device
        tensor = forebay.empty(1000, device="cuda")
        found = figures_of("cuda:0")
        assert found.emulated
        assert found.capacity == forebay.cuda.get_device_properties(0).total_memory
        assert found.readings.memory_used == found.reserved == 2 << 20
        assert found.readings.temperature is not None
        assert found.readings.power is not None
        del tensor
    assert not [each for each in collect().devices if each.device.startswith("cuda")]


@pytest.mark.parametrize("argv", [[Path("a.py"), 3], None, []])
def test_any_arguments_of_the_program_are_text(monkeypatch, argv):
    monkeypatch.setattr("sys.argv", argv)
    assert collect().program == ("a.py 3" if argv else "")


def test_busy_queue_is_counted():
    stream, gate = forebay.Stream("cpu"), threading.Event()
    assert figures_of("cpu").busy_streams == 0
    stream.queue.call(lambda: gate.wait(30))
    try:
        assert figures_of("cpu").busy_streams == 1
    finally:
        gate.set()
        stream.synchronize()
    assert figures_of("cpu").busy_streams == 0
