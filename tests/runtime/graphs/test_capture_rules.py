"""What cannot be captured, and what that does to the capture."""

from __future__ import annotations

import threading

import pytest
from support.graph_scenes import broken

import forebay
from forebay import cuda
from forebay.errors import DeviceError, Unsupported
from forebay.runtime.base import capture_state
from forebay.runtime.graphs.graph import Graph


@pytest.mark.parametrize("mode", ["global", "thread_local"])
@pytest.mark.parametrize(
    "call",
    [
        lambda stream: stream.synchronize(),
        lambda stream: stream.query(),
        lambda stream: forebay.synchronize(stream.device),
        lambda stream: forebay.Stream(stream.device).synchronize(),
        lambda stream: stream.record_event().synchronize(),
        lambda stream: stream.record_event().query(),
    ],
    ids=["synchronize", "query", "synchronize all", "synchronize another", "wait for an event", "ask an event"],
)
def test_waiting_breaks_a_capture(stream, call, mode):
    graph = Graph()
    graph.capture_begin(capture_error_mode=mode)
    assert broken(graph, lambda: call(stream)) == [900, 901]
    stream.synchronize()


def test_in_a_relaxed_capture_others_may_be_waited_for(stream):
    numbers, other, graph = forebay.zeros(1), forebay.Stream(stream.device), Graph()
    event = stream.record_event()
    graph.capture_begin(capture_error_mode="relaxed")
    other.synchronize()
    assert event.query() in {True, False}
    event.synchronize()  # of before
    numbers.fill_(1)
    graph.capture_end()
    graph.reset()
    graph.capture_begin(capture_error_mode="relaxed")
    assert broken(graph, stream.synchronize) == [900, 901]


@pytest.mark.parametrize(("mode", "outcome"), [("global", 900), ("thread_local", None), ("relaxed", None)])
def test_whether_other_threads_may_wait(stream, mode, outcome):
    codes, graph, numbers = [], Graph(), forebay.zeros(1)

    def wait():
        try:
            forebay.Stream(stream.device).synchronize()
            codes.append(None)
        except DeviceError as error:
            codes.append(error.code)

    graph.capture_begin(capture_error_mode=mode)
    numbers.fill_(1)
    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(20)
    assert codes == [outcome]
    if outcome is None:
        graph.capture_end()
    else:
        with pytest.raises(DeviceError):
            graph.capture_end()


def test_numbers_that_the_host_draws_are_not_captured(stream, monkeypatch):
    """As a backend without the ability has them."""
    monkeypatch.setattr("forebay.runtime.random.fill._draws", lambda queue: False)
    numbers, graph = forebay.zeros(3), Graph()
    graph.capture_begin()
    with pytest.raises(Unsupported, match=r"drawn by the host, which no graph can repeat") as raised:
        numbers.uniform_()
    assert raised.value.ability == "Randoms"
    graph.reset()
    numbers.uniform_()
    assert numbers.tolist() != [0] * 3


def test_reading_a_tensor_is_not_captured(stream):
    numbers, graph = forebay.full((1,), 1.0), Graph()
    graph.capture_begin()
    with pytest.raises(RuntimeError, match=r"Cannot copy between CPU|not permitted when stream is capturing"):
        numbers.tolist()
    graph.reset()
    assert numbers.tolist() == [1]


@pytest.mark.parametrize(
    ("join", "code"),
    [
        (lambda stream, other: stream.wait_stream(other), 905),
        (lambda stream, other: other.wait_stream(stream), 904),
    ],
    ids=["on work outside", "that is not joined"],
)
def test_a_dependency_that_makes_no_graph(stream, join, code):
    numbers, other, graph = forebay.zeros(1), forebay.Stream(stream.device), Graph()
    with other:
        numbers.fill_(1)
    graph.capture_begin()
    numbers.fill_(2)

    def on():
        join(stream, other)
        with other:
            numbers.fill_(3)
        graph.capture_end()

    with pytest.raises(DeviceError) as raised:
        on()
    assert raised.value.code == code
    graph.reset()
    other.synchronize()
    stream.synchronize()


def test_two_captures_cannot_merge(stream):
    one, two, other = Graph(), Graph(), forebay.Stream(stream.device)
    one.capture_begin()
    with other:
        two.capture_begin()
        assert capture_state.capture_of(stream.queue).owner() is one
        with pytest.raises(DeviceError) as raised:
            other.wait_stream(stream)
        assert raised.value.code == 902
        with pytest.raises(DeviceError, match="previous error"):
            two.capture_end()
    with pytest.raises(DeviceError, match="previous error"):
        one.capture_end()


def test_two_captures_side_by_side(stream):
    first, second = forebay.zeros(1), forebay.zeros(1)
    one, two, other = Graph(), Graph(), forebay.Stream(stream.device)
    one.capture_begin()
    first.fill_(1)
    with other:
        two.capture_begin()
        second.fill_(2)
        two.capture_end()
    one.capture_end()
    assert one.pool() != two.pool()
    one.replay()
    two.replay()
    assert (first.tolist(), second.tolist()) == ([1], [2])


def test_another_thread_cannot_end_it(stream):
    numbers, graph, codes = forebay.zeros(1), Graph(), []
    graph.capture_begin()
    numbers.fill_(1)

    def end():
        with stream:
            try:
                graph.capture_end()
            except DeviceError as error:
                codes.append(error.code)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join(20)
    assert codes == [908]
    graph.capture_end()  # it goes on
    graph.replay()
    assert numbers.tolist() == [1]


def test_to_ask_of_another_kind_is_no_first_use():
    graph = Graph()
    with forebay.Stream("host:0"):
        graph.capture_begin()
        assert not cuda.is_current_stream_capturing()
        with forebay.emulate("cuda"):
            assert not cuda.is_current_stream_capturing()
            assert not cuda.is_initialized()
        with pytest.warns(UserWarning, match="Graph is empty"):
            graph.capture_end()
