"""forebay.mtia on emulated devices: first use, devices, streams. Without devices: scenes/mtia_without_backend."""

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


def zeros_on(index=0, n=4):
    return forebay.zeros(n, dtype=np.uint8, device=f"mtia:{index}")


# First use


def test_queries_and_seeds_do_not_initialise():
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
        zeros_on,
    ],
)
def test_first_use_initialises(use):
    use()
    assert mtia.is_initialized()
    assert mtia._initialized


def test_queued_calls_run_in_order_at_the_first_use():
    seen = []
    assert mtia._lazy_call(lambda: seen.append("first")) is None
    mtia._lazy_call(lambda: seen.append(mtia.current_device()))  # a queued call may use the device
    assert len(mtia._queued_calls) == 2
    assert seen == []
    mtia.init()
    assert seen == ["first", 0]
    assert mtia._lazy_call(lambda: "immediately") == "immediately"
    mtia._queued_calls.clear()


def test_failed_queued_call_reports_its_caller_and_is_retried():
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
            assert "test_failed_queued_call_reports_its_caller" in text
            assert isinstance(caught.value.__cause__, KeyError)
            assert not mtia.is_initialized()
    finally:
        mtia._queued_calls.clear()
    assert len(attempts) == 2


def test_concurrent_first_uses_initialise_once():
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


def test_set_device_changes_the_current_device():
    assert mtia.current_device() == 0
    for device, index in ((1, 1), ("mtia:0", 0), (forebay.device("mtia:1"), 1), (-1, 1), (-7, 1)):
        mtia.set_device(device)
        assert (mtia.current_device(), index_of_new_tensor()) == (index, index)


def index_of_new_tensor():
    return forebay.empty(1, device="mtia").device.index


def test_device_context_restores_the_previous_device():
    with mtia.device(1) as entered:
        assert (mtia.current_device(), entered) == (1, None)
        with mtia.device("mtia:0"), mtia.device(None), mtia.device(-1), mtia.device(mtia.device(0)):
            assert mtia.current_device() == 0
        assert mtia.current_device() == 1
    assert mtia.current_device() == 0
    with pytest.raises(KeyError), mtia.device(1):
        raise KeyError("passed on")
    assert mtia.current_device() == 0


def test_exchange_device_returns_the_previous_index():
    assert [mtia._exchange_device(index) for index in (1, -1, 0)] == [0, -1, 1]
    assert [mtia._maybe_exchange_device(index) for index in (1, -1, 0)] == [0, -1, 1]
    for exchange in (mtia._exchange_device, mtia._maybe_exchange_device):
        with pytest.raises(RuntimeError, match="invalid argument to exchangeDevice"):
            exchange("x")


@pytest.mark.parametrize("use", [mtia.set_device, mtia.device, mtia.current_stream, mtia.get_device_properties])
@pytest.mark.parametrize(
    ("device", "error", "message"),
    [
        ("cpu", ValueError, "Expected a non cpu device, but got: cpu"),
        ("cuda:1", ValueError, "Expected a mtia or cpu device, but got: cuda:1"),
        ("mtia:", RuntimeError, "Invalid device string: 'mtia:'"),
        ("", RuntimeError, "Device string must not be empty"),
    ],
)
def test_invalid_device_arguments_are_rejected(use, device, error, message):
    with pytest.raises(error, match=message):
        use(device)


def test_indices_that_overflow_are_rejected():
    for use in (mtia.set_device, mtia.synchronize, mtia.current_stream, mtia.default_stream, mtia.memory_stats):
        with pytest.raises(RuntimeError, match=r"^Overflow when unpacking DeviceIndex$"):
            use(1 << 70)


@pytest.mark.parametrize("index", [2, 99])
def test_missing_devices_are_rejected(index):
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


def test_device_properties():
    props = mtia.get_device_properties(1)
    assert (props["name"], props["total_memory"]) == ("MTIA v2 (emulated)", 64 << 20)
    assert props["core_count"] == 64
    assert mtia.get_device_capability("mtia:1") == (props["major"], props["minor"]) == (2, 0)
    props["name"] = "changed"  # a copy
    assert mtia.get_device_properties(1)["name"] == "MTIA v2 (emulated)"
    assert mtia.is_bf16_supported()


# Streams and events


def test_streams_and_events_are_the_general_classes():
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


def test_stream_context_makes_the_stream_current():
    stream = mtia.Stream("mtia")
    with mtia.stream(stream) as entered:
        assert entered is None
        assert mtia.current_stream() == stream == forebay.current_stream()
        with mtia.stream(None):
            assert mtia.current_stream() == stream
    assert mtia.current_stream() == mtia.default_stream()


def test_stream_context_restores_both_devices():
    inner, outer1, outer0 = mtia.Stream("mtia:1"), mtia.Stream("mtia:1"), mtia.Stream("mtia:0")
    mtia.set_stream(outer1)
    mtia.set_stream(outer0)
    context = mtia.StreamContext(inner)
    assert (context.idx, context.src_prev_stream, context.cur_stream) == (0, None, None)
    with context:
        assert (mtia.current_device(), mtia.current_stream()) == (1, inner)
        assert (context.src_prev_stream, context.dst_prev_stream) == (outer0, outer1)
    assert (mtia.current_device(), mtia.current_stream(), mtia.current_stream(1)) == (0, outer0, outer1)
    mtia.set_stream(mtia.default_stream(1))
    mtia.set_stream(mtia.default_stream(0))


def test_invalid_streams_are_rejected_and_change_nothing():
    before = mtia.current_stream()
    for wrong in (3, "mtia", object()):
        with pytest.raises(TypeError, match="expected a Stream"), mtia.stream(wrong):
            pass
        with pytest.raises(TypeError, match="expected a Stream"):
            mtia.set_stream(wrong)
    assert mtia.current_stream() == before
    mtia.set_stream(None)
    assert mtia.current_stream() == before


def test_set_stream_by_id():
    stream = mtia.Stream("mtia:1")
    mtia._set_stream_by_id(stream.stream_id, stream.device_index, stream.device_type)
    assert (mtia.current_stream(), mtia.current_device()) == (stream, 1)
    mtia._set_stream_by_id(0, 1, 19)
    assert mtia.current_stream() == mtia.default_stream(1)
    for numbers, error, message in (
        ((0, 7, 19), RuntimeError, "Device index value 7 is out of index range"),
        ((0, 0, 1), forebay.ForebayError, "device type 1 is not that of MTIA, 19"),
        ((12345, 0, 19), forebay.DeviceError, "MTIA error: invalid resource handle"),
        (("x", 0, 19), forebay.ForebayError, "must be an int, not str"),
    ):
        with pytest.raises(error, match=message):
            mtia._set_stream_by_id(*numbers)
    mtia.set_device(0)


def test_current_stream_is_per_thread():
    mtia.set_stream(mtia.Stream("mtia:1"))
    seen = []
    thread = threading.Thread(target=lambda: seen.append((mtia.current_device(), mtia.current_stream(1).stream_id)))
    thread.start()
    thread.join(60)
    assert seen == [(0, 0)]


def test_synchronize_waits_for_queued_work():
    stream, tensor = mtia.Stream("mtia"), zeros_on()
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
