"""`forebay.simulate.Pinned`: cases that the golden traces (tests/golden) do not cover."""

from __future__ import annotations

import pytest

from forebay.errors import DeviceError, ForebayError
from forebay.simulate import Device, Pinned, World

KIB, MIB = 1 << 10, 1 << 20


def test_zero_bytes_have_address_0():
    pinned = Pinned()
    assert pinned.allocate(0) == 0
    pinned.free(0)
    pinned.record_stream(0, 1)
    assert set(pinned.stats().values()) == {0}


def test_invalid_addresses_and_sizes_are_rejected():
    pinned = Pinned()
    address = pinned.allocate(KIB)
    pinned.free(address)
    for use in (pinned.free, lambda address: pinned.record_stream(address, 1)):
        for invalid in (address, address + 1, 12345):
            with pytest.raises(ForebayError, match="invalid pinned pointer"):
                use(invalid)
    for nbytes in (-1, 1 << 100):
        with pytest.raises((ValueError, DeviceError)):
            pinned.allocate(nbytes)
    assert pinned.stats()["active_requests.current"] == 0
    assert pinned.broken() is None


def test_invalid_settings_are_rejected():
    with pytest.raises(ValueError, match="greater than 0"):
        Pinned("pinned_reserve_segment_size_mb:0")
    pinned = Pinned()
    with pytest.raises(ValueError, match="Unrecognized key"):
        pinned.apply_settings("pinned_max_cached_size_mb:1,nonsense:1")
    pinned.free(pinned.allocate(2 * MIB))
    assert pinned.stats()["num_host_free"] == 1  # no key of the rejected settings was applied


def test_failing_system_releases_the_cache_and_retries():
    pinned = Pinned()
    pinned.fail_next(1)
    with pytest.raises(DeviceError, match="cannot be pinned"):
        pinned.allocate(KIB)
    pinned.free(pinned.allocate(KIB))
    pinned.fail_next(1)
    assert pinned.allocate(MIB)  # after releasing the cache
    assert pinned.stats()["num_host_free"] == 1


def test_background_thread_processes_frees():
    pinned = Pinned("pinned_use_background_threads:True")
    address = pinned.allocate(KIB)
    pinned.hold_events()
    pinned.record_stream(address, 1)
    pinned.free(address)
    assert pinned.stats()["active_requests.current"] == 1
    pinned.release_events()
    assert pinned.stats()["active_requests.current"] == 0


def test_device_and_pinned_memory_share_a_clock():
    world = World()
    pinned, gpu = Pinned(world=world), Device(1 << 30, world=world)
    address = pinned.allocate(KIB)
    gpu.hold_events()
    pinned.record_stream(address, 1)
    pinned.free(address)
    pinned.empty_cache()
    assert pinned.stats()["allocations.current"] == 1
    gpu.synchronize()
    pinned.empty_cache()
    assert pinned.stats()["allocations.current"] == 0


def test_history_is_recorded():
    pinned = Pinned()
    assert pinned.snapshot() == {"host_segments": [], "host_traces": []}
    with pytest.raises(ForebayError, match="expected context to be"):
        pinned.record_history("all", "nonsense")
    pinned.record_history()
    pinned.free(pinned.allocate(1000))
    snapshot = pinned.snapshot()
    actions = ["segment_alloc", "alloc", "free_requested", "free_completed"]
    assert [entry["action"] for entry in snapshot["host_traces"]] == actions
    assert [segment["total_size"] for segment in snapshot["host_segments"]] == [KIB]
    pinned.record_history(None)
    assert pinned.snapshot() == {"host_segments": [], "host_traces": []}
