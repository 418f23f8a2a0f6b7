"""Traces of what does not go as usual: work that is not done, too much of it, queues without time, devices that end."""

from __future__ import annotations

import threading

import pytest
from support.perfetto_files import decoded

import forebay
from forebay import cuda
from forebay.errors import DeviceError
from forebay.observe import Trace, trace
from forebay.testing.fake import FakeQueue

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "made.pftrace"


class QueueWithoutTime(FakeQueue):
    mark = None  # is to have none, for whoever asks a protocol


def test_work_before_a_capture_is_waited_for_at_the_end(path, emulated):
    gate = threading.Event()
    stream = cuda.Stream()
    tensor = forebay.empty(10, device="cuda:0")
    graph = cuda.CUDAGraph()
    made = Trace(path, limit=30)
    made.start()
    with cuda.stream(stream):
        stream.queue.call(lambda: gate.wait(30))
        tensor.fill_(0)
        graph.capture_begin()
        tensor.fill_(1)
        graph.capture_end()
    opener = threading.Timer(0.01, gate.set)
    opener.start()
    made.stop()
    opener.join()
    assert (made.operations, made.unfinished) == (2, 0)
    graph.reset()


def test_work_that_is_not_done_is_told_so_and_not_waited_for_longer_than_the_limit(path):
    gate = threading.Event()
    stream = forebay.Stream("host:0")
    running = threading.Event()
    with trace(path, limit=0) as made:
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
    found = decoded(path)
    assert (made.operations, made.unfinished) == (1, 1)
    (call,) = (each for each in found.slices if each.id)
    assert call.details["execution"] == "not begun"
    assert found.recording["not done"] == 1


def test_what_runs_at_the_end_has_no_end(path, fake):
    with trace(path, limit=0) as made:
        tensor = forebay.empty(10, device="fake:0")
        fake.ports[0].command_ns = 1000
        tensor.fill_(0)
        fake.clock.advance(500)
    (execution,) = decoded(path).executed
    assert (execution.end, execution.details["execution"], made.unfinished) == (None, "not done", 1)
    forebay.synchronize("fake:0")


def test_the_newest_entries_are_kept_and_the_others_counted(path):
    tensor = forebay.empty(10)
    with trace(path, most=10) as made:
        for _ in range(100):
            tensor.fill_(0)
    found = decoded(path)
    assert (made.operations, made.lost) == (10, 91)  # the second entry of all was what memory there is
    assert [each.id for each in found.executed] == list(range(92, 102))
    assert found.recording["lost"] == 91


def test_of_work_that_its_queue_has_forgotten_the_trace_says_so(path):
    tensor, stream = forebay.empty(10), forebay.current_stream("host:0")
    with trace(path, most=2) as made:
        tensor.fill_(0)
        for _ in range(2):
            stream.queue.call(lambda: None)  # no operation of the runtime's
        stream.synchronize()
    (call,) = (each for each in decoded(path).slices if each.id)
    assert call.details["execution"] == "not known: its queue did too much since"
    assert (made.operations, made.unfinished) == (1, 0)


@pytest.mark.parametrize("most", [10**10, 1 << 62])
def test_room_for_more_than_there_is_does_no_harm(path, most):
    with trace(path, most=most) as made:
        forebay.zeros(3)
    assert (made.operations, made.unfinished, made.lost) == (1, 0, 0)


@pytest.mark.usefixtures("emulated")
def test_a_queue_that_was_closed_is_waited_for_as_without_a_trace(path):
    stream = cuda.Stream()
    stream.queue.close()
    cuda.synchronize()
    with trace(path) as made:
        cuda.synchronize()
    assert made.operations == 0


def test_the_wait_by_which_a_stream_joins_a_capture_is_not_executed(path, emulated):
    tensor, side, graph = forebay.empty(10, device="cuda"), cuda.Stream(), cuda.CUDAGraph()
    with trace(path), cuda.graph(graph):
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            tensor.fill_(3)
        cuda.current_stream().wait_stream(side)
    found = decoded(path)
    assert found.executed == []
    assert {each.details["execution"] for each in found.slices if each.id} == {"recorded for a graph"}
    graph.reset()


def test_a_long_operation_is_told_from_what_is_left_of_it(path):
    rows, most = forebay.empty((6, 4), dtype="uint8"), 3
    with trace(path, most=most):
        rows[:, :2].copy_(forebay.zeros((6, 2), dtype="uint8"))  # six copies
    execution = decoded(path).executed[-1]
    assert execution.name == "copy_"
    assert execution.begin <= execution.end


def test_a_wait_for_what_is_done_takes_no_time(path):
    stream, other = forebay.Stream("host:0"), forebay.Stream("host:0")
    event = forebay.Event()
    event.record(other)
    event.synchronize()
    with trace(path) as made:
        event.wait(stream)
    (execution,) = decoded(path).executed
    assert execution.end == execution.begin
    assert (made.operations, made.unfinished) == (1, 0)


def test_a_queue_that_cannot_time_is_watched_and_the_trace_says_so(path, fake, monkeypatch):
    monkeypatch.setattr("forebay.testing.fake.FakeQueue", QueueWithoutTime)
    tensor = forebay.empty(10, device="fake:0")
    with trace(path, limit=0) as made:
        tensor.fill_(0)
        forebay.synchronize("fake:0")
        tensor.fill_(0)
    found = decoded(path)
    first, second = found.executed
    (wait,) = (each for each in found.slices if each.category == "host")
    assert wait.begin <= first.end <= wait.end
    assert second.end is None
    assert first.details["timed by"] == "the host: it was done by then"
    assert found.recording["timed by the host"] == "fake:0"
    assert made.unfinished == 1
    forebay.synchronize("fake:0")


def test_a_clock_that_fails_takes_nothing_from_other_devices(path, fake, monkeypatch):
    def fail(*marks):
        raise DeviceError("the timer broke")

    monkeypatch.setattr(FakeQueue, "elapsed_ms", fail)
    with trace(path, limit=0) as made:
        forebay.empty(10, device="fake:0").fill_(0)
        forebay.empty(10, device="host:0").fill_(0)
        forebay.synchronize("host:0")
        forebay.synchronize("fake:0")
        forebay.empty(10, device="fake:0").fill_(0)  # never done
    assert (made.operations, made.unfinished) == (3, 1)
    found = decoded(path)
    assert [each.details["device"] for each in found.executed] == ["host:0"]
    fills = [each.details for each in found.slices if each.category == "fill"]
    said = [fill["execution"] for fill in fills if fill["device"] == "fake:0"]
    assert said == ["not known: the timer broke"] * 2
    forebay.synchronize("fake:0")


def test_waiting_for_each_operation_leaves_its_failure_to_the_next_synchronization(path, fake):
    tensor = forebay.empty(10, device="fake:0")
    fake.ports[0].fail_work("fill", error=DeviceError("the fill broke", code=7, call="fill", device="fake:0"))
    with trace(path, wait_until_completed=True, limit=0):
        tensor.fill_(0)
        assert forebay.default_stream("fake:0").query()
        with pytest.raises(DeviceError, match="the fill broke"):
            forebay.synchronize("fake:0")
        tensor.fill_(0)
        forebay.synchronize("fake:0")


def test_work_that_queues_work_behind_itself_is_not_waited_for(path):
    tensor = forebay.empty(10)
    with trace(path, wait_until_completed=True) as made:
        forebay.current_stream("host:0").queue.call(lambda: tensor.fill_(0))
        forebay.synchronize("host:0")
    assert made.operations == 1


def test_an_emulation_that_ended_meanwhile_is_told_all_the_same(path):
    with trace(path) as made:
        with forebay.emulate("cuda", memory="64MiB"):
            forebay.zeros(10, device="cuda:0")
        with forebay.emulate("cuda", memory="64MiB"):
            forebay.zeros(10, device="cuda:0")
    assert (made.operations, made.unfinished) == (2, 0)
    assert len(decoded(path).executed) == 2
