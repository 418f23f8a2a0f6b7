"""forebay.mtia on emulated devices: first use, devices, streams. Without any: scenes/mtia_without_backend."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import forebay
from forebay import mtia


@pytest.fixture(autouse=True)
def two_devices():
    with forebay.emulate("mtia", count=2, memory="64MiB"):
        yield


def on(index=0, n=4):
    return forebay.zeros(n, dtype=np.uint8, device=f"mtia:{index}")


# First use


def test_what_comes_before_the_first_use_is_no_use():
    assert (mtia.is_available(), mtia.device_count(), mtia._is_compiled()) == (True, 2, True)
    assert (mtia.memory_stats(), mtia.memory_allocated(), mtia.max_memory_allocated()) == ({}, 0, 0)
    assert mtia.reset_peak_memory_stats(9) is None
    assert mtia.record_memory_history("nonsense") is None
    assert mtia.empty_cache() is None
    assert mtia.manual_seed(3) is mtia.seed() is None
    assert not mtia.is_current_stream_capturing()
    assert not mtia.is_initialized()


@pytest.mark.parametrize(
    "use",
    [
        mtia.init,
        mtia.current_device,
        mtia.current_stream,
        mtia.default_stream,
        mtia.synchronize,
        mtia.initial_seed,
        mtia.get_rng_state,
        mtia.get_device_properties,
        lambda: mtia.set_device(1),
        lambda: mtia.stream(None),
        on,
    ],
)
def test_what_is_a_first_use(use):
    use()
    assert mtia.is_initialized()
    assert mtia._initialized


def test_calls_wait_for_it_in_their_order():
    seen = []
    assert mtia._lazy_call(lambda: seen.append("first")) is None
    mtia._lazy_call(lambda: seen.append(mtia.current_device()))  # a queued call may use the device
    assert len(mtia._queued_calls) == 2
    assert seen == []
    mtia.init()
    assert seen == ["first", 0]
    assert mtia._lazy_call(lambda: "at once") == "at once"
    mtia._queued_calls.clear()


def test_a_call_that_fails_tells_who_made_it_and_is_repeated():
    attempts = []

    def fail():
        attempts.append(1)
        raise KeyError("no")

    mtia._lazy_call(fail)
    try:
        for _ in range(2):
            with pytest.raises(mtia.DeferredMtiaCallError) as caught:
                mtia.init()
            text = str(caught.value)
            assert text.startswith("MTIA call failed lazily at initialization with error: 'no'\n\nMTIA call was origin")
            assert "test_a_call_that_fails_tells_who_made_it" in text
            assert isinstance(caught.value.__cause__, KeyError)
            assert not mtia.is_initialized()
    finally:
        mtia._queued_calls.clear()
    assert len(attempts) == 2


def test_of_threads_that_come_together_one_initialises():
    ran, done = [], []
    mtia._lazy_call(lambda: ran.append(1))
    try:
        threads = [threading.Thread(target=lambda: done.append(mtia.current_device()), daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        mtia._queued_calls.clear()
    assert (ran, done) == ([1], [0] * 8)


# Devices


def test_the_current_device():
    assert mtia.current_device() == 0
    for device, index in ((1, 1), ("mtia:0", 0), (forebay.Device("mtia:1"), 1), (-1, 1), (-7, 1)):
        mtia.set_device(device)
        assert (mtia.current_device(), on_current()) == (index, index)


def on_current():
    return forebay.empty(1, device="mtia").device.index


def test_contexts_of_devices():
    with mtia.device(1) as given:
        assert (mtia.current_device(), given) == (1, None)
        with mtia.device("mtia:0"), mtia.device(None), mtia.device(-1), mtia.device(mtia.device(0)):
            assert mtia.current_device() == 0
        assert mtia.current_device() == 1
    assert mtia.current_device() == 0
    with pytest.raises(KeyError), mtia.device(1):
        raise KeyError("through")
    assert mtia.current_device() == 0


def test_devices_are_exchanged():
    assert [mtia._exchange_device(index) for index in (1, -1, 0)] == [0, -1, 1]
    assert [mtia._maybe_exchange_device(index) for index in (1, -1, 0)] == [0, -1, 1]
    for exchange in (mtia._exchange_device, mtia._maybe_exchange_device):
        with pytest.raises(RuntimeError, match="invalid argument to exchangeDevice"):
            exchange("x")


@pytest.mark.parametrize("use", [mtia.set_device, mtia.device, mtia.current_stream, mtia.get_device_properties])
@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("cpu", "Expected a non cpu device, but got: cpu"),
        ("cuda:1", "Expected a mtia or cpu device, but got: cuda:1"),
        ("mtia:", "invalid device 'mtia:'"),
        ("", "invalid device ''"),
    ],
)
def test_devices_that_cannot_be_meant(use, device, words):
    with pytest.raises(ValueError, match=words):
        use(device)


@pytest.mark.parametrize("index", [2, 99, 1 << 70])
def test_devices_that_are_not_there(index):
    for use in (mtia.set_device, mtia.synchronize, mtia.get_device_capability, mtia._exchange_device):
        with pytest.raises(forebay.DeviceError, match="MTIA error: invalid device ordinal"):
            use(index)
    for use in (mtia.current_stream, mtia.default_stream):
        with pytest.raises(RuntimeError, match=rf"Device index value {index} is out of index range \[0, 2\)"):
            use(index)
    for use in (mtia.memory_stats, mtia.memory_allocated, mtia.reset_peak_memory_stats):
        with pytest.raises(RuntimeError, match="Invalid device argument"):
            use(index)
    with pytest.raises(IndexError):
        mtia.get_rng_state(index)
    assert mtia.current_device() == 0


def test_what_a_device_is():
    found = mtia.get_device_properties(1)
    assert (found["name"], found["total_memory"]) == ("MTIA v2 (emulated)", 64 << 20)
    assert found["core_count"] == 64
    assert mtia.get_device_capability("mtia:1") == (found["major"], found["minor"]) == (2, 0)
    found["name"] = "mine"  # it is a copy
    assert mtia.get_device_properties(1)["name"] == "MTIA v2 (emulated)"
    assert mtia.is_bf16_supported()


# Streams and events


def test_streams_and_events_are_those_of_no_kind():
    assert mtia.Stream is forebay.Stream
    assert mtia.Event is forebay.Event
    stream = mtia.Stream("mtia:1", priority=-1)
    assert (stream.device_type, stream.device_index, isinstance(stream, mtia.Stream)) == (19, 1, True)
    event = mtia.Event("mtia:1", enable_timing=True, blocking=True)
    assert event.event_id == 0
    assert stream.record_event(event) is event
    assert event.event_id
    with pytest.raises(TypeError):
        mtia.Stream("mtia", -1)


def test_a_stream_is_current_inside():
    stream = mtia.Stream("mtia")
    with mtia.stream(stream) as given:
        assert given is None
        assert mtia.current_stream() == stream == forebay.current_stream()
        with mtia.stream(None):
            assert mtia.current_stream() == stream
    assert mtia.current_stream() == mtia.default_stream()


def test_a_stream_of_another_device_leaves_both_as_they_were():
    there, elsewhere, here = mtia.Stream("mtia:1"), mtia.Stream("mtia:1"), mtia.Stream("mtia:0")
    mtia.set_stream(elsewhere)
    mtia.set_stream(here)
    context = mtia.StreamContext(there)
    assert (context.idx, context.src_prev_stream, context.cur_stream) == (0, None, None)
    with context:
        assert (mtia.current_device(), mtia.current_stream()) == (1, there)
        assert (context.src_prev_stream, context.dst_prev_stream) == (here, elsewhere)
    assert (mtia.current_device(), mtia.current_stream(), mtia.current_stream(1)) == (0, here, elsewhere)
    mtia.set_stream(mtia.default_stream(1))
    mtia.set_stream(mtia.default_stream(0))


def test_a_context_that_fails_to_begin_changes_nothing():
    before = mtia.current_stream()
    for wrong in (3, "mtia", object()):
        with pytest.raises(TypeError, match="expected a Stream"), mtia.stream(wrong):
            pass
        with pytest.raises(TypeError, match="expected a Stream"):
            mtia.set_stream(wrong)
    assert mtia.current_stream() == before
    mtia.set_stream(None)
    assert mtia.current_stream() == before


def test_streams_by_number():
    stream = mtia.Stream("mtia:1")
    mtia._set_stream_by_id(stream.stream_id, stream.device_index, stream.device_type)
    assert (mtia.current_stream(), mtia.current_device()) == (stream, 1)
    mtia._set_stream_by_id(0, 1, 19)
    assert mtia.current_stream() == mtia.default_stream(1)
    for numbers, error, words in (
        ((0, 7, 19), RuntimeError, "Device index value 7 is out of index range"),
        ((0, 0, 1), forebay.ForebayError, "a stream of device type 1 is none of MTIA's"),
        ((12345, 0, 19), forebay.DeviceError, "MTIA error: invalid resource handle"),
        (("x", 0, 19), forebay.ForebayError, "an int, not str"),
    ):
        with pytest.raises(error, match=words):
            mtia._set_stream_by_id(*numbers)
    mtia.set_device(0)


def test_streams_of_each_thread():
    mtia.set_stream(mtia.Stream("mtia:1"))
    seen = []
    thread = threading.Thread(target=lambda: seen.append((mtia.current_device(), mtia.current_stream(1).stream_id)))
    thread.start()
    thread.join(60)
    assert seen == [(0, 0)]


def test_work_is_waited_for():
    stream, tensor = mtia.Stream("mtia"), on()
    gate = threading.Event()
    stream.wait_stream(mtia.current_stream())
    stream.queue.call(lambda: gate.wait(60))
    with mtia.stream(stream):
        tensor.fill_(7)
    assert not stream.query()
    gate.set()
    mtia.synchronize()
    assert stream.query()
    assert tensor.tolist() == [7] * 4
