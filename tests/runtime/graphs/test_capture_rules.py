"""Calls that cannot be captured, and their effect on the capture."""

from __future__ import annotations

import threading

import pytest
from support.graph_scenes import error_codes

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
    ids=["synchronize", "query", "synchronize all", "synchronize another", "wait for an event", "query an event"],
)
def test_waiting_breaks_capture(stream, call, mode):
    graph = Graph()
    graph.capture_begin(capture_error_mode=mode)
    assert error_codes(graph, lambda: call(stream)) == [900, 901]
    stream.synchronize()


def test_relaxed_capture_allows_waiting_for_other_streams(stream):
    numbers, other, graph = forebay.zeros(1), forebay.Stream(stream.device), Graph()
    event = stream.record_event()
    graph.capture_begin(capture_error_mode="relaxed")
    other.synchronize()
    assert event.query() in {True, False}
    event.synchronize()  # recorded before the capture
    numbers.fill_(1)
    graph.capture_end()
    graph.reset()
    graph.capture_begin(capture_error_mode="relaxed")
    assert error_codes(graph, stream.synchronize) == [900, 901]


@pytest.mark.parametrize(("mode", "outcome"), [("global", 900), ("thread_local", None), ("relaxed", None)])
def test_capture_mode_decides_whether_other_threads_may_wait(stream, mode, outcome):
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


def test_random_fill_on_host_is_not_captured(stream, monkeypatch):
    """A backend without the RandomNumbers ability draws on the host."""
    monkeypatch.setattr("forebay.runtime.random.drawing._supports_draws", lambda queue: False)
    numbers, graph = forebay.zeros(3), Graph()
    graph.capture_begin()
    with pytest.raises(Unsupported, match="draws random numbers on the host, which a graph cannot capture") as raised:
        numbers.uniform_()
    assert raised.value.ability == "RandomNumbers"
    graph.reset()
    numbers.uniform_()
    assert numbers.tolist() != [0] * 3


def test_reading_tensor_is_not_captured(stream):
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
    ids=["on uncaptured work", "not joined"],
)
def test_invalid_stream_dependency_breaks_capture(stream, join, code):
    numbers, other, graph = forebay.zeros(1), forebay.Stream(stream.device), Graph()
    with other:
        numbers.fill_(1)
    graph.capture_begin()
    numbers.fill_(2)

    def fork_and_end():
        join(stream, other)
        with other:
            numbers.fill_(3)
        graph.capture_end()

    with pytest.raises(DeviceError) as raised:
        fork_and_end()
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


def test_two_captures_are_independent(stream):
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


def test_other_thread_cannot_end_capture(stream):
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
    graph.capture_end()  # the capture is still active
    graph.replay()
    assert numbers.tolist() == [1]


def test_is_capturing_does_not_initialise_another_kind():
    graph = Graph()
    with forebay.Stream("cpu"):
        graph.capture_begin()
        assert not cuda.is_current_stream_capturing()
        with forebay.emulate("cuda"):
            assert not cuda.is_current_stream_capturing()
            assert not cuda.is_initialized()
        with pytest.warns(UserWarning, match="Graph is empty"):
            graph.capture_end()
