"""Setting advice in OutOfMemory texts: only settings that a replay has confirmed."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

import forebay
from forebay import OutOfMemory, _oom_advice, simulate
from forebay.snapshot.replay import advice

MIB = 1 << 20


def advice_lines(gpu, nbytes: int, stream: int = 0) -> list[str]:
    """Return the advice in the OutOfMemory text of a request."""
    with pytest.raises(OutOfMemory) as caught:
        gpu.allocate(nbytes, stream)
    assert gpu.broken() is None
    return [line for line in str(caught.value).splitlines() if "FOREBAY_ALLOC_CONF=" in line and "replayed" in line]


def recording(total: int, settings: str = "") -> simulate.Device:
    gpu = simulate.Device(total, settings)
    gpu.record_history(context=None)
    return gpu


def fragmented(settings: str = "") -> simulate.Device:
    """Create a device of 96 MiB where 40 were freed and 2 of them are reused, so the segment cannot be released."""
    gpu = recording(96 * MIB, settings)
    gpu.free(gpu.allocate(40 * MIB))
    gpu.allocate(2 * MIB)
    return gpu


def test_expandable_segments_are_advised_for_fragmentation():
    gpu = fragmented()
    before = gpu.stats()
    (line,) = advice_lines(gpu, 60 * MIB)
    assert line == (
        "  With FOREBAY_ALLOC_CONF=expandable_segments:True the request succeeds when "
        "the 3 recorded events are replayed."
    )
    after = gpu.stats()
    assert after["num_ooms"] == before["num_ooms"] + 1
    assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]
    assert advice_lines(expandable := fragmented("expandable_segments:True"), 90 * MIB) == []
    assert expandable.allocate(60 * MIB)  # the advice is correct


def test_active_setting_is_not_advised():
    assert advice_lines(fragmented("expandable_segments:True"), 96 * MIB) == []


def test_advice_keeps_active_settings():
    (line,) = advice_lines(fragmented("max_split_size_mb:64"), 60 * MIB)
    assert "FOREBAY_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True the " in line


def test_no_advice_if_no_setting_helps():
    gpu = recording(120 * MIB)
    for _ in range(6):
        gpu.allocate(18 * MIB)
    assert advice_lines(gpu, 42 * MIB) == []


def test_no_advice_without_a_history():
    gpu = simulate.Device(96 * MIB)
    gpu.free(gpu.allocate(40 * MIB))
    gpu.allocate(2 * MIB)
    assert advice_lines(gpu, 60 * MIB) == []


def test_no_advice_from_a_history_that_began_too_late():
    """The history began after the fragments were made, so a replay cannot reproduce the error."""
    gpu = simulate.Device(96 * MIB)
    gpu.free(gpu.allocate(40 * MIB))
    gpu.allocate(2 * MIB)
    gpu.record_history(context=None)
    assert advice_lines(gpu, 60 * MIB) == []


def test_memory_of_other_processes_and_the_limit_count():
    gpu = simulate.Device(196 * MIB, other_used=100 * MIB)
    gpu.record_history(context=None)
    gpu.free(gpu.allocate(40 * MIB))
    gpu.allocate(2 * MIB)
    assert len(advice_lines(gpu, 60 * MIB)) == 1
    gpu.set_other_used(140 * MIB)
    assert advice_lines(gpu, 60 * MIB) == []

    gpu = fragmented()
    gpu.set_memory_fraction(0.5)
    assert advice_lines(gpu, 60 * MIB) == []


@pytest.mark.slow
def test_advice_is_fast_for_any_history():
    """With a large history only the newest entries are replayed, within a time limit."""
    gpu = recording(96 * MIB)
    for _ in range(120_000):
        gpu.free(gpu.allocate(512))
    gpu.free(gpu.allocate(40 * MIB))
    gpu.allocate(2 * MIB)
    start = time.perf_counter()
    advice_lines(gpu, 60 * MIB)
    assert time.perf_counter() - start < 20 * advice.SECONDS  # other processes may slow the machine down


def test_failing_adviser_does_not_hide_the_error(monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr(advice, "suggest_settings", fail)
    assert advice_lines(fragmented(), 60 * MIB) == []


def test_replay_uses_the_segment_sizes_of_the_device(fake):
    """On a device with fine segments the replay uses its segment sizes."""
    device = "fake:0"
    forebay.memory.record_history(device=device)
    kept = [forebay.allocate(16 * MIB, device) for _ in range(3)]
    with pytest.raises(OutOfMemory) as caught:
        forebay.allocate(32 * MIB, device)
    assert "replayed" not in str(caught.value)  # 48 of 64 MiB are in use
    del kept


def test_no_advice_for_private_pools():
    gpu = fragmented()
    pool = gpu.new_pool()
    with gpu.use_pool(pool):
        assert advice_lines(gpu, 60 * MIB) == []


def test_adviser_is_not_called_recursively(monkeypatch):
    """An adviser that itself runs out of memory is not called recursively."""
    gpu, calls = fragmented(), []

    def recursive(snapshot, **_):
        calls.append(replace(snapshot))
        assert advice_lines(gpu, 60 * MIB) == []
        return ["  advice"]

    monkeypatch.setattr(advice, "suggest_settings", recursive)
    with pytest.raises(OutOfMemory, match="advice"):
        gpu.allocate(60 * MIB)
    assert len(calls) == 1
    assert not _oom_advice._thread.advising
