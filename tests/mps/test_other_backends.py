"""forebay.mps on other devices than the usual one: a vendor's, which has no pool and no heaps, and two at once."""

from __future__ import annotations

import pytest

import forebay
from forebay import mps
from forebay.backends import registered
from forebay.runtime.lifecycle.emulation import forget_kind
from forebay.testing.conformance.scenes import Gate, call
from forebay.testing.fake import FakeDriver


@pytest.fixture
def vendors():
    """A driver of a package; its devices' clock goes when it is told to."""
    driver = FakeDriver(kind="mps")
    with registered(driver):
        yield driver
        forget_kind("mps")


def test_a_vendors_device_is_there(vendors):
    assert (mps.is_available(), mps.device_count()) == (True, 1)
    assert mps.recommended_max_memory() == 1 << 30  # all there is
    tensor = forebay.empty(1000, device="mps")
    assert 4000 <= mps.current_allocated_memory() <= mps.driver_allocated_memory()
    with pytest.raises(forebay.Unsupported, match=r"^the host does not reach the memory of mps:0: copy it"):
        mps._host_alias_storage(tensor)


def test_streams_of_their_own_are_named_by_their_handles(vendors):
    first, second = mps.Stream(), mps.Stream()
    assert (first.stream_id, second.stream_id) == (first.handle, second.handle) == (1, 2)
    assert mps.Stream(2) == second
    with pytest.raises(forebay.DeviceError, match=r"mps:0 has no stream 0x3\.$"):
        mps.Stream(3)
    del second
    assert mps.Stream().stream_id == 2  # lent again
    with mps.stream(first):
        assert mps.current_stream() == first


def test_times_are_the_devices(vendors):
    start, end = mps.Event(enable_timing=True), mps.Event(enable_timing=True)
    start.record()
    for _ in range(5):
        call(mps.default_stream(), lambda: None)  # a microsecond each
    end.record()
    assert start.elapsed_time(end) == 0.005
    with pytest.raises(RuntimeError, match=r"^End event 1 was not recorded after start event 2$"):
        end.elapsed_time(start)


def test_a_wait_does_no_more_than_it_must(vendors):
    event, stream = mps.Event(), mps.default_stream()
    call(stream, lambda: None)
    event.record()
    call(stream, lambda: None)
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert not stream.query()


# ---- Two devices, which PyTorch never has


@pytest.fixture
def two():
    with forebay.emulate("mps", count=2, profile="apple_m1"):
        yield


def test_the_functions_mean_the_current_device(two):
    assert mps.device_count() == forebay.device_count("mps") == 2
    tensor = forebay.zeros(1000, device="mps:1")
    assert mps.current_allocated_memory() == 0
    with forebay.use_device("mps:1"):
        assert mps.current_allocated_memory() >= tensor.nbytes
        assert mps.current_stream().device == mps.Stream().device == forebay.Device("mps", 1)
        mps.manual_seed(11)
    assert (forebay.random.initial_seed("mps:1"), mps._get_default_mps_generator().device.index) == (11, 0)


def test_an_event_stays_on_the_device_it_was_made_on(two):
    first = mps.Event(enable_timing=True)
    with forebay.use_device("mps:1"), mps.stream(mps.Stream()):
        second = mps.Event(enable_timing=True)
        first.record()  # on mps:0, where the default stream is current
        with pytest.raises(NotImplementedError):
            second.record()
    assert (repr(first), repr(second)) == ("<forebay.mps.Event 1>",) * 2  # each of its own pool
    gate = Gate()
    call(forebay.default_stream("mps:1"), gate)
    second.record()
    assert first.query() or first.synchronize() is None
    assert not second.query()
    gate.open()
    assert first.elapsed_time(second) >= 0


def test_a_stream_of_the_other_device_and_back(two):
    with forebay.use_device("mps:1"):
        other = mps.Stream()
    with mps.stream(other):
        assert forebay.current_device() == forebay.Device("mps", 1)
        assert mps.current_stream() == other
    assert forebay.current_device() == forebay.Device("mps", 0)
    assert mps.current_stream() == mps.default_stream()
    assert forebay.current_stream("mps:1") == forebay.default_stream("mps:1")
