"""Streams: order, waiting, failures and reuse of queues."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest

import forebay
from forebay import DeviceError, Stream, cuda, default_stream, synchronize

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def gate():
    """An event that releases the streams held by `hold`."""
    event = threading.Event()
    yield event
    event.set()


def hold(stream, gate):
    stream.queue.call(lambda: gate.wait(30))


def test_each_stream_has_its_own_queue(fake):
    first, second = Stream("fake:0"), Stream("fake:0")
    assert default_stream("fake:0").handle == 0
    assert len({default_stream("fake:0"), first, second}) == 3
    assert default_stream("fake:0") == default_stream("fake")
    assert repr(first) == f"forebay.Stream device_type=fake, device_index=0, stream_id={first.stream_id}"
    assert first != first.handle


def test_work_is_executed_in_order(gate):
    stream, done = Stream(), []
    hold(stream, gate)
    for i in range(100):
        stream.queue.call(lambda i=i: done.append(i))
    assert not stream.query()
    assert done == []
    gate.set()
    stream.synchronize()
    assert done == list(range(100))
    assert stream.query()


def test_wait_stream_orders_streams(gate):
    first, second, done = Stream(), Stream(), []
    hold(first, gate)
    first.queue.call(lambda: done.append("first"))
    second.wait_stream(first)
    second.queue.call(lambda: done.append("second"))
    assert not second.query()
    gate.set()
    second.synchronize()
    assert done == ["first", "second"]
    first.wait_stream(first)  # nothing to wait for
    first.synchronize()


def test_host_waits_for_stream_of_another_kind(fake):
    stream, other = Stream("cpu"), Stream("fake:0")
    other.queue.fill(fake.ports[0].reserve(1 << 21), 0, 8)
    stream.wait_stream(other)
    assert other.query()


def test_wait_stream_across_devices_of_one_kind(fake):
    one, two = Stream("fake:0"), Stream("fake:1")
    one.queue.call(lambda: None)
    two.wait_stream(one)
    assert not one.query()
    two.synchronize()
    assert one.query()


def test_synchronize_waits_for_all_streams_of_the_device(fake):
    streams = [Stream("fake:0") for _ in range(3)]
    other = Stream("fake:1")
    for stream in (*streams, other):
        stream.queue.call(lambda: None)
    synchronize("fake:0")
    assert all(stream.query() for stream in streams)
    assert not other.query()


def test_query_and_synchronize_start_no_thread():
    stream = Stream()
    ticks = stream.queue.reached()
    assert stream.query()
    stream.synchronize()
    synchronize()
    assert stream.queue.reached() == ticks  # not even a signal
    assert forebay.from_numpy(np.ones(2)).numpy().tolist() == [1, 1]


@pytest.mark.parametrize("sync", [Stream.synchronize, lambda stream: synchronize(stream.device)])
@pytest.mark.parametrize("late", [False, True])
def test_next_wait_raises_failure_once(sync, late):
    stream, done = Stream(), []
    stream.queue.call(lambda: 1 / 0)
    stream.queue.call(lambda: done.append(1))
    if late:
        while not stream.query():
            pass
    with pytest.raises(DeviceError, match=r"failed with ZeroDivisionError: division by zero") as caught:
        sync(stream)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    sync(stream)
    assert done == [1]


def test_synchronize_reports_failures_of_several_streams(fake):
    streams = [Stream("fake:0") for _ in range(3)]
    for at, stream in enumerate(streams):
        stream.queue.call(lambda at=at: [][at])
        stream.queue.call(lambda: None)
    with pytest.raises(DeviceError, match=f"queue {streams[0].handle} failed") as caught:
        synchronize("fake:0")
    assert [note.split()[5] for note in caught.value.__notes__] == [str(stream.handle) for stream in streams[1:]]
    assert all(stream.query() for stream in streams)
    synchronize("fake:0")


def test_destroyed_streams_queue_is_reused(gate):
    stream, done = Stream(priority=-1), []
    hold(stream, gate)
    stream.queue.call(lambda: done.append("pending"))
    handle, reference = stream.handle, weakref.ref(stream)
    del stream
    gc.collect()
    assert reference() is None
    assert Stream(priority=0).handle != handle
    successor = Stream(priority=-1)
    assert successor.handle == handle
    successor.queue.call(lambda: done.append("after"))
    gate.set()
    successor.synchronize()
    assert done == ["pending", "after"]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_stream_cannot_be_copied_or_pickled(copied):
    with pytest.raises(TypeError, match=r"^cannot pickle 'Stream' object$"):
        copied(Stream())


def test_default_streams_queue_is_never_reused():
    default = default_stream()
    other = Stream(stream_id=0, device_index=default.device_index, device_type=default.device_type)
    assert other == default
    del other
    gc.collect()
    assert Stream().handle != 0
    assert forebay.current_stream() == default


def test_priority_is_a_hint(fake):
    Stream("fake:0", priority=-3)
    assert ("queue", -3) in fake.ports[0].calls
    assert Stream(priority=10**6).priority == 10**6
    for invalid in (True, 1.0, "high", None):
        with pytest.raises(TypeError, match=r"^Stream\(\): argument 'priority' must be int, not "):
            Stream(priority=invalid)


def test_failed_stream_creation_causes_no_warning(fake, recwarn):
    Stream("fake:0")
    fake.ports[0].fail("queue")
    one, two = Stream("fake:0"), None
    with pytest.raises(DeviceError, match="scripted"):
        two = Stream("fake:0")
    assert (one.query(), two, list(recwarn)) == (True, None, [])


def test_short_lived_streams_share_one_queue():
    handles = set()
    for _ in range(200):
        handles.add(Stream(priority=3).handle)
    assert len(handles) == 1


def test_cuda_stream_differs_from_generic_stream():
    with forebay.emulate("cuda"):
        plain, named = default_stream("cuda:0"), cuda.default_stream(0)
        assert type(plain) is not type(named)
        assert (plain == named, named == plain, len({plain, named})) == (False, False, 2)  # as in PyTorch
