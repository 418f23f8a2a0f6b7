"""forebay.mps on a vendor's device without stream pool and heaps, and on two devices."""

from __future__ import annotations

import pytest

import forebay
from forebay import mps
from forebay.backends import override_driver
from forebay.runtime.lifecycle.emulation import reset_kind
from forebay.testing.conformance.helpers import Gate, enqueue_call
from forebay.testing.fake import FakeDriver


@pytest.fixture
def vendor():
    """A third-party driver, whose devices have a manual clock."""
    driver = FakeDriver(kind="mps")
    with override_driver(driver):
        yield driver
        reset_kind("mps")


def test_vendor_device_is_available(vendor):
    assert (mps.is_available(), mps.device_count()) == (True, 1)
    assert mps.recommended_max_memory() == 1 << 30  # the total memory
    tensor = forebay.empty(1000, device="mps")
    assert 4000 <= mps.current_allocated_memory() <= mps.driver_allocated_memory()
    with pytest.raises(forebay.Unsupported, match=r"^the host cannot access memory of mps:0: copy it"):
        mps._host_alias_storage(tensor)


def test_vendor_stream_ids_are_their_handles(vendor):
    first, second = mps.Stream(), mps.Stream()
    assert (first.stream_id, second.stream_id) == (first.handle, second.handle) == (1, 2)
    assert mps.Stream(2) == second
    with pytest.raises(forebay.DeviceError, match="invalid resource handle") as caught:
        mps.Stream(3)
    assert caught.value.__notes__ == ["mps:0 has no stream 0x3."]
    del second
    assert mps.Stream().stream_id == 2  # reused
    with mps.stream(first):
        assert mps.current_stream() == first


def test_elapsed_time_uses_the_device_clock(vendor):
    start, end = mps.Event(enable_timing=True), mps.Event(enable_timing=True)
    start.record()
    for _ in range(5):
        enqueue_call(mps.default_stream(), lambda: None)  # one microsecond each
    end.record()
    assert start.elapsed_time(end) == 0.005
    with pytest.raises(RuntimeError, match=r"^End event 1 was not recorded after start event 2$"):
        end.elapsed_time(start)


def test_event_synchronize_waits_for_no_later_work(vendor):
    event, stream = mps.Event(), mps.default_stream()
    enqueue_call(stream, lambda: None)
    event.record()
    enqueue_call(stream, lambda: None)
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert not stream.query()


# ---- Two devices; PyTorch has one at most


@pytest.fixture
def two_devices():
    with forebay.emulate("mps", count=2, profile="apple_m1"):
        yield


def test_functions_use_the_current_device(two_devices):
    assert mps.device_count() == forebay.device_count("mps") == 2
    tensor = forebay.zeros(1000, device="mps:1")
    assert mps.current_allocated_memory() == 0
    with forebay.use_device("mps:1"):
        assert mps.current_allocated_memory() >= tensor.nbytes
        assert mps.current_stream().device == mps.Stream().device == forebay.device("mps", 1)
        mps.manual_seed(11)
    assert (forebay.random.initial_seed("mps:1"), mps._get_default_mps_generator().device.index) == (11, 0)


def test_event_belongs_to_the_device_that_was_current_at_creation(two_devices):
    first = mps.Event(enable_timing=True)
    with forebay.use_device("mps:1"), mps.stream(mps.Stream()):
        second = mps.Event(enable_timing=True)
        first.record()  # on mps:0, where the default stream is current
        with pytest.raises(NotImplementedError):
            second.record()
    assert (repr(first), repr(second)) == ("<forebay.mps.Event 1>",) * 2  # from two pools
    gate = Gate()
    enqueue_call(forebay.default_stream("mps:1"), gate)
    second.record()
    assert first.query() or first.synchronize() is None
    assert not second.query()
    gate.open()
    with pytest.raises(forebay.DeviceError, match="MPS error: invalid resource handle"):
        first.elapsed_time(second)


def test_stream_context_switches_to_the_other_device_and_back(two_devices):
    with forebay.use_device("mps:1"):
        other = mps.Stream()
    with mps.stream(other):
        assert forebay.current_device() == forebay.device("mps", 1)
        assert mps.current_stream() == other
    assert forebay.current_device() == forebay.device("mps", 0)
    assert mps.current_stream() == mps.default_stream()
    assert forebay.current_stream("mps:1") == forebay.default_stream("mps:1")
