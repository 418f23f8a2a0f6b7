"""The setting that would have helped, in the text of an OutOfMemory: only what a replay has shown."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

import forebay
from forebay import OutOfMemory, _oom_advice, simulate
from forebay.snapshot.replay import advice

MIB = 1 << 20


def advised(gpu, nbytes: int, stream: int = 0) -> list[str]:
    """What is said of a request that finds no memory."""
    with pytest.raises(OutOfMemory) as caught:
        gpu.allocate(nbytes, stream)
    assert gpu.broken() is None
    return [line for line in str(caught.value).splitlines() if "FOREBAY_ALLOC_CONF=" in line and "replayed" in line]


def recording(total: int, settings: str = "") -> simulate.Device:
    gpu = simulate.Device(total, settings)
    gpu.record_history(context=None)
    return gpu


def fragmented(settings: str = "") -> simulate.Device:
    """A device of 96 MiB: 40 were freed, 2 of them are used again, so that segment cannot go."""
    gpu = recording(96 * MIB, settings)
    gpu.free(gpu.allocate(40 * MIB))
    gpu.allocate(2 * MIB)
    return gpu


def test_growing_segments_would_have_helped():
    gpu = fragmented()
    before = gpu.stats()
    (line,) = advised(gpu, 60 * MIB)
    assert line == (
        "  Under FOREBAY_ALLOC_CONF=expandable_segments:True the 3 recorded events, replayed, leave room for it."
    )
    after = gpu.stats()
    assert after["num_ooms"] == before["num_ooms"] + 1
    assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]
    assert advised(simulated_again := fragmented("expandable_segments:True"), 90 * MIB) == []
    assert simulated_again.allocate(60 * MIB)  # it is true


def test_where_the_setting_is_on_already_it_is_not_advised():
    assert advised(fragmented("expandable_segments:True"), 96 * MIB) == []


def test_a_setting_that_is_on_is_kept_beside_the_advised_one():
    (line,) = advised(fragmented("max_split_size_mb:64"), 60 * MIB)
    assert "FOREBAY_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True the " in line


def test_where_nothing_helps_nothing_is_said():
    gpu = recording(120 * MIB)
    for _ in range(6):
        gpu.allocate(18 * MIB)
    assert advised(gpu, 42 * MIB) == []


def test_without_a_history_nothing_is_said():
    gpu = simulate.Device(96 * MIB)
    gpu.free(gpu.allocate(40 * MIB))
    gpu.allocate(2 * MIB)
    assert advised(gpu, 60 * MIB) == []


def test_a_history_that_does_not_tell_of_the_trouble_proves_nothing():
    """GIVEN a history that began after the fragments were made, WHEN memory runs out, THEN nothing is claimed."""
    gpu = simulate.Device(96 * MIB)
    gpu.free(gpu.allocate(40 * MIB))
    gpu.allocate(2 * MIB)
    gpu.record_history(context=None)
    assert advised(gpu, 60 * MIB) == []


def test_memory_of_others_and_the_limit_count():
    gpu = simulate.Device(196 * MIB, other_used=100 * MIB)
    gpu.record_history(context=None)
    gpu.free(gpu.allocate(40 * MIB))
    gpu.allocate(2 * MIB)
    assert len(advised(gpu, 60 * MIB)) == 1
    gpu.set_other_used(140 * MIB)
    assert advised(gpu, 60 * MIB) == []

    gpu = fragmented()
    gpu.set_memory_fraction(0.5)
    assert advised(gpu, 60 * MIB) == []


def test_it_takes_little_time_whatever_the_history():
    """GIVEN a million entries, WHEN memory runs out, THEN the newest are replayed, for a moment and no longer."""
    gpu = recording(96 * MIB)
    for _ in range(120_000):
        gpu.free(gpu.allocate(512))
    gpu.free(gpu.allocate(40 * MIB))
    gpu.allocate(2 * MIB)
    start = time.perf_counter()
    advised(gpu, 60 * MIB)
    assert time.perf_counter() - start < 20 * advice.SECONDS  # of a machine that does other things as well


def test_an_adviser_that_fails_hides_nothing(monkeypatch):
    def fail(*_, **__):
        raise MemoryError("not even for this")

    monkeypatch.setattr(advice, "lines", fail)
    assert advised(fragmented(), 60 * MIB) == []


def test_the_host_device_is_advised_by_what_it_does_itself(fake):
    """GIVEN fragments on a device with segments of its own sizes, WHEN advised, THEN the replay uses those."""
    device = "fake:0"
    forebay.memory.record_history(device=device)
    kept = [forebay.allocate(16 * MIB, device) for _ in range(3)]
    with pytest.raises(OutOfMemory) as caught:
        forebay.allocate(32 * MIB, device)
    assert "replayed" not in str(caught.value)  # 48 of 64 MiB are in use
    del kept


def test_a_request_of_a_private_pool_is_left_alone():
    gpu = fragmented()
    pool = gpu.new_pool()
    with gpu.use_pool(pool):
        assert advised(gpu, 60 * MIB) == []


def test_it_is_asked_once_at_a_time(monkeypatch):
    """GIVEN an adviser that runs out of memory itself, WHEN it is asked again from there, THEN it says nothing."""
    gpu, asked = fragmented(), []

    def again(snapshot, **_):
        asked.append(replace(snapshot))
        assert advised(gpu, 60 * MIB) == []
        return ["  said"]

    monkeypatch.setattr(advice, "lines", again)
    with pytest.raises(OutOfMemory, match="said"):
        gpu.allocate(60 * MIB)
    assert len(asked) == 1
    assert not _oom_advice._busy.now
