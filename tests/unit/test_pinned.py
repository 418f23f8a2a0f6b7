"""Pinned host memory: transfers that the host does not wait for."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import penstock
from penstock import DeviceError, Stream, Unsupported
from penstock.runtime.storage import is_pinned

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def port():
    return penstock.default_stream("host:0").opened.port


def test_it_is_an_array():
    array = penstock.empty_pinned(2, 3, dtype=np.int16)
    array[...] = 7
    assert (array.shape, array.dtype, array.flags.c_contiguous) == ((2, 3), np.int16, True)
    assert penstock.empty_pinned((4,)).dtype == np.float32
    assert penstock.empty_pinned(2, dtype="bfloat16").dtype.name == "bfloat16"
    for view in (array, array[1:], array.T, array.view(np.uint8), array.ravel()):
        assert is_pinned(view)
    for other in (array.copy(), np.ones(3), array + 1, penstock.tensor([1]).numpy()):
        assert not is_pinned(other)


def test_nothing_pins_nothing(port):
    pinned = len(port._pinned)
    assert penstock.empty_pinned(0, 3).shape == (0, 3)
    assert len(port._pinned) == pinned


@pytest.mark.parametrize("size", [(-1,), (2.5,), (1 << 100,), (1 << 40,)])
def test_what_cannot_be_pinned(size, port):
    pinned = dict(port._pinned)
    with pytest.raises((TypeError, ValueError, DeviceError)):
        penstock.empty_pinned(*size)
    assert port._pinned == pinned


def test_the_host_goes_on():
    stream, gate = Stream(), threading.Event()
    source = penstock.empty_pinned(1000)
    source[...] = 5
    with stream:
        target = penstock.zeros(1000)
        stream.queue.call(lambda: gate.wait(30))
        target.copy_(source, non_blocking=True)
        back = penstock.empty_pinned(1000)
        penstock.from_numpy(back).copy_(target, non_blocking=True)
        assert not stream.query()
        gate.set()
        stream.synchronize()
    assert back.tolist() == [5] * 1000


def test_it_waits_where_it_must():
    """Without non_blocking, and for memory that is not pinned, also a converted copy of some that is."""
    stream = Stream()
    with stream:
        target = penstock.zeros(1000)
        pinned = penstock.empty_pinned(1000)
        for source, non_blocking in ((pinned, False), (np.ones(1000, np.float32), True)):
            gate = threading.Event()
            stream.queue.call(lambda gate=gate: gate.wait(30))
            timer = threading.Timer(0.05, gate.set)
            timer.start()
            target.copy_(source, non_blocking=non_blocking)
            assert gate.is_set()
            timer.join()


def test_it_lives_until_it_was_read(port):
    pinned = len(port._pinned)
    stream, gate = Stream(), threading.Event()
    source = penstock.empty_pinned(1000)
    with stream:
        target = penstock.zeros(1000)
        stream.queue.call(lambda: gate.wait(30))
        target.copy_(source, non_blocking=True)
    del source
    gc.collect()
    assert len(port._pinned) == pinned + 1
    gate.set()
    stream.synchronize()
    assert len(port._pinned) == pinned


def test_it_comes_back_in_any_order(port):
    pinned = len(port._pinned)
    arrays = [penstock.empty_pinned(100) for _ in range(20)]
    views = [array[3:] for array in arrays]
    arrays.reverse()
    del arrays
    assert len(port._pinned) == pinned + 20
    del views
    gc.collect()
    assert len(port._pinned) == pinned


def test_to_a_device_that_the_host_cannot_read(fake):
    target = penstock.empty(1000, device="fake:0")
    source = penstock.empty_pinned(1000, device="host:0")
    target.copy_(source, non_blocking=True)
    assert not penstock.current_stream("fake:0").query()
    target.copy_(source)
    assert penstock.current_stream("fake:0").query()
    target.copy_(source.astype(np.float64), non_blocking=True)
    assert penstock.current_stream("fake:0").query()


def test_a_device_that_lends_none(fake, monkeypatch):
    monkeypatch.setattr("penstock.runtime.storage.PinnedHost", str)  # no port is one
    with pytest.raises(Unsupported, match="fake lends no pinned host memory") as caught:
        penstock.empty_pinned(3, device="fake:0")
    assert caught.value.ability == "PinnedHost"
