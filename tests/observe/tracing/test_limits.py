"""Traces in unusual conditions: unfinished work, full recorders, queues that cannot time, retired devices."""

from __future__ import annotations

import threading

import pytest
from support.perfetto_files import decode

import forebay
from forebay import cuda
from forebay.errors import DeviceError
from forebay.observe import Trace, trace
from forebay.testing.fake import FakeQueue

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "made.pftrace"


class UntimedQueue(FakeQueue):
    mark = None  # hides the method from isinstance(queue, Timing)


def test_stop_waits_for_work_before_a_capture(path, emulated):
    gate = threading.Event()
    stream = cuda.Stream()
    tensor = forebay.empty(10, device="cuda:0")
    graph = cuda.CUDAGraph()
    recording = Trace(path, limit=30)
    recording.start()
    with cuda.stream(stream):
        stream.queue.call(lambda: gate.wait(30))
        tensor.fill_(0)
        graph.capture_begin()
        tensor.fill_(1)
        graph.capture_end()
    opener = threading.Timer(0.01, gate.set)
    opener.start()
    recording.stop()
    opener.join()
    assert (recording.operations, recording.unfinished) == (2, 0)
    graph.reset()


def test_unfinished_work_is_reported_after_the_limit(path):
    gate = threading.Event()
    stream = forebay.Stream("cpu")
    running = threading.Event()
    with trace(path, limit=0) as recording:
        with stream:
            held = forebay.empty(10)

            def hold():
                running.set()
                gate.wait(30)

            stream.queue.call(hold)
            held.fill_(0)
        assert running.wait(30)
    gate.set()
    stream.synchronize()
    found = decode(path)
    assert (recording.operations, recording.unfinished) == (1, 1)
    (call,) = (each for each in found.slices if each.id)
    assert call.details["execution"] == "not begun"
    assert found.recording["not done"] == 1


def test_running_operation_has_no_end(path, fake):
    with trace(path, limit=0) as recording:
        tensor = forebay.empty(10, device="fake:0")
        fake.ports[0].command_ns = 1000
        tensor.fill_(0)
        fake.clock.advance(500)
    (execution,) = decode(path).executed
    assert (execution.end, execution.details["execution"], recording.unfinished) == (None, "not done", 1)
    forebay.synchronize("fake:0")


def test_newest_entries_are_kept_and_others_counted(path):
    tensor = forebay.empty(10)
    with trace(path, most=10) as recording:
        for _ in range(100):
            tensor.fill_(0)
    found = decode(path)
    assert (recording.operations, recording.lost) == (10, 91)  # the second entry is the memory counters
    assert [each.id for each in found.executed] == list(range(92, 102))
    assert found.recording["lost"] == 91


def test_operation_missing_from_the_queues_log_has_an_unknown_time(path):
    tensor, stream = forebay.empty(10), forebay.current_stream("cpu")
    with trace(path, most=2) as recording:
        tensor.fill_(0)
        for _ in range(2):
            stream.queue.call(lambda: None)  # not an operation of the runtime
        stream.synchronize()
    (call,) = (each for each in decode(path).slices if each.id)
    assert call.details["execution"] == "unknown: no longer in the queue's log"
    assert (recording.operations, recording.unfinished) == (1, 0)


@pytest.mark.parametrize("most", [10**10, 1 << 62])
def test_more_entries_than_memory_are_accepted(path, most):
    with trace(path, most=most) as recording:
        forebay.zeros(3)
    assert (recording.operations, recording.unfinished, recording.lost) == (1, 0, 0)


@pytest.mark.usefixtures("emulated")
def test_synchronizing_a_closed_queue_is_traced(path):
    stream = cuda.Stream()
    stream.queue.close()
    cuda.synchronize()
    with trace(path) as recording:
        cuda.synchronize()
    assert recording.operations == 0


def test_wait_that_joins_a_capture_is_not_executed(path, emulated):
    tensor, side, graph = forebay.empty(10, device="cuda"), cuda.Stream(), cuda.CUDAGraph()
    with trace(path), cuda.graph(graph):
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            tensor.fill_(3)
        cuda.current_stream().wait_stream(side)
    found = decode(path)
    assert found.executed == []
    assert {each.details["execution"] for each in found.slices if each.id} == {"captured into a graph"}
    graph.reset()


def test_long_operation_is_traced_from_the_rest_of_its_log(path):
    rows, most = forebay.empty((6, 4), dtype="uint8"), 3
    with trace(path, most=most):
        rows[:, :2].copy_(forebay.zeros((6, 2), dtype="uint8"))  # six copies
    execution = decode(path).executed[-1]
    assert execution.name == "copy_"
    assert execution.begin <= execution.end


def test_wait_for_a_completed_event_takes_no_time(path):
    stream, other = forebay.Stream("cpu"), forebay.Stream("cpu")
    event = forebay.Event()
    event.record(other)
    event.synchronize()
    with trace(path) as recording:
        event.wait(stream)
    (execution,) = decode(path).executed
    assert execution.end == execution.begin
    assert (recording.operations, recording.unfinished) == (1, 0)


def test_untimed_queue_is_timed_by_the_host(path, fake, monkeypatch):
    monkeypatch.setattr("forebay.testing.fake.backend.FakeQueue", UntimedQueue)
    tensor = forebay.empty(10, device="fake:0")
    with trace(path, limit=0) as recording:
        tensor.fill_(0)
        forebay.synchronize("fake:0")
        tensor.fill_(0)
    found = decode(path)
    first, second = found.executed
    (wait,) = (each for each in found.slices if each.category == "host")
    assert wait.begin <= first.end <= wait.end
    assert second.end is None
    assert first.details["timed by"] == "the host, when it observed the completion"
    assert found.recording["timed by the host"] == "fake:0"
    assert recording.unfinished == 1
    forebay.synchronize("fake:0")


def test_failing_clock_does_not_affect_other_devices(path, fake, monkeypatch):
    def fail(*marks):
        raise DeviceError("the timer broke")

    monkeypatch.setattr(FakeQueue, "elapsed_ms", fail)
    with trace(path, limit=0) as recording:
        forebay.empty(10, device="fake:0").fill_(0)
        forebay.empty(10, device="cpu").fill_(0)
        forebay.synchronize("cpu")
        forebay.synchronize("fake:0")
        forebay.empty(10, device="fake:0").fill_(0)  # never done
    assert (recording.operations, recording.unfinished) == (3, 1)
    found = decode(path)
    assert [each.details["device"] for each in found.executed] == ["cpu"]
    fills = [each.details for each in found.slices if each.category == "fill"]
    states = [fill["execution"] for fill in fills if fill["device"] == "fake:0"]
    assert states == ["unknown: the timer broke"] * 2
    forebay.synchronize("fake:0")


def test_wait_until_completed_defers_failures_to_the_next_synchronization(path, fake):
    tensor = forebay.empty(10, device="fake:0")
    fake.ports[0].fail_work("fill", error=DeviceError("the fill broke", code=7, call="fill", device="fake:0"))
    with trace(path, wait_until_completed=True, limit=0):
        tensor.fill_(0)
        assert forebay.default_stream("fake:0").query()
        with pytest.raises(DeviceError, match="the fill broke"):
            forebay.synchronize("fake:0")
        tensor.fill_(0)
        forebay.synchronize("fake:0")


def test_wait_until_completed_does_not_wait_inside_the_queue(path):
    tensor = forebay.empty(10)
    with trace(path, wait_until_completed=True) as recording:
        forebay.current_stream("cpu").queue.call(lambda: tensor.fill_(0))
        forebay.synchronize("cpu")
    assert recording.operations == 1


def test_ended_emulations_are_traced(path):
    with trace(path) as recording:
        with forebay.emulate("cuda", memory="64MiB"):
            forebay.zeros(10, device="cuda:0")
        with forebay.emulate("cuda", memory="64MiB"):
            forebay.zeros(10, device="cuda:0")
    assert (recording.operations, recording.unfinished) == (2, 0)
    assert len(decode(path).executed) == 2
