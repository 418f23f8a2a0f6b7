"""Replays execute the captured work on the current stream."""

from __future__ import annotations

import numpy as np
import pytest
from support.graph_scenes import capture

import forebay
from forebay.errors import DeviceError
from forebay.runtime.graphs.graph import Graph, capturing_graph


def test_replay_executes_captured_work(stream):
    numbers, graph = forebay.zeros(3), Graph()
    capture(graph, lambda: numbers.fill_(5))
    assert numbers.tolist() == [0, 0, 0]
    for _ in range(2):
        numbers.zero_()
        graph.replay()
        assert numbers.tolist() == [5, 5, 5]


def test_replay_fills_and_converts_again(stream):
    numbers, table, graph = forebay.zeros(6), forebay.zeros(2, 3, dtype="int16"), Graph()
    wide, patterns = forebay.zeros(3, 2, dtype="float64"), forebay.zeros(5, dtype="int32")
    capture(
        graph,
        lambda: (
            patterns[::2].fill_(1000),
            table.copy_(numbers.view(2, 3)),
            wide.copy_(table.transpose(0, 1)),
            numbers[1:].copy_(numbers[:-1]),
        ),
    )
    for first in (1, 2):
        numbers.copy_(np.arange(6) + first + 0.5)
        patterns.zero_()
        graph.replay()
        assert table.tolist() == [[first, first + 1, first + 2], [first + 3, first + 4, first + 5]]
        assert wide.tolist() == [[first, first + 3], [first + 1, first + 4], [first + 2, first + 5]]
        assert numbers.tolist() == [first + 0.5, *(first + at + 0.5 for at in range(5))]
        assert patterns.tolist() == [1000, 0, 1000, 0, 1000]


def test_replay_reads_current_inputs(stream):
    source, out, graph = forebay.zeros(3), forebay.zeros(3), Graph()
    capture(graph, lambda: out.copy_(source))
    for number in (1, 2):
        source.fill_(number)
        graph.replay()
        assert out.tolist() == [number] * 3


def test_replay_is_queued_on_current_stream(stream):
    numbers, graph = forebay.zeros(1), Graph()
    capture(graph, lambda: numbers.fill_(5))
    graph.replay()
    with forebay.Stream(stream.device) as other:
        other.wait_stream(stream)
        numbers.zero_()
        graph.replay()
        other.synchronize()
        assert numbers.tolist() == [5]
    with forebay.runtime.streams.stream.default_stream(stream.device) as default:
        graph.replay()
        default.synchronize()


def test_graph_captures_joined_stream(stream):
    one, other, graph = forebay.zeros(2), forebay.zeros(2), Graph(keep_graph=True)
    side = forebay.Stream(stream.device)
    graph.capture_begin()
    one.fill_(1)
    side.wait_stream(stream)
    assert side.is_capturing()
    with side:
        other.fill_(2)
        assert capturing_graph() is graph
    stream.wait_stream(side)
    one.copy_(other)
    graph.capture_end()
    assert not side.is_capturing()
    graph.replay()
    assert one.tolist() == [2, 2]
    assert graph.get_graph_data()["nodes"][2]["dependencies"] == [0, 1] or graph.work[2].dependencies


def test_events_fork_and_join_captured_streams(stream):
    numbers, graph, event = forebay.zeros(2), Graph(), forebay.Event()
    side = forebay.Stream(stream.device)
    graph.capture_begin()
    event.record(stream)
    event.wait(side)
    with side:
        numbers.fill_(3)
    done = side.record_event()
    done.wait(stream)
    graph.capture_end()
    graph.replay()
    assert numbers.tolist() == [3, 3]
    with pytest.raises(DeviceError) as raised:
        done.query()
    assert raised.value.code == 907
    with pytest.raises(DeviceError):
        done.synchronize()
    done.record(stream)
    done.synchronize()
    assert done.query()


def test_each_replay_copies_pinned_array_again(stream):
    numbers, graph = forebay.zeros(4), Graph()
    pinned = forebay.empty_pinned(4, dtype="float32")
    pinned[:] = 1
    sources = [pinned]
    capture(graph, lambda: numbers.copy_(sources[0], non_blocking=True))
    pinned[:] = 2
    graph.replay()
    assert numbers.tolist() == [2] * 4
    pinned[:] = 3
    del sources[0], pinned
    forebay.empty_pinned(4, dtype="float32")[:] = 4  # not the same memory: the graph keeps it alive
    graph.replay()
    assert numbers.tolist() == [3] * 4


def test_copy_of_unpinned_array_cannot_be_captured(stream):
    numbers, graph = forebay.zeros(4), Graph()
    graph.capture_begin()
    for copy in (
        lambda: numbers.copy_(np.ones(4, "f4")),
        lambda: numbers.copy_(forebay.empty_pinned(4, dtype="float32")),
        lambda: numbers.copy_(np.ones(4, "f4"), non_blocking=True),
    ):
        with pytest.raises(RuntimeError, match=r"Cannot copy between CPU and [A-Z]* tensors during"):
            copy()
    numbers.fill_(1)
    graph.capture_end()  # the capture is not broken
    graph.replay()
    assert numbers.tolist() == [1] * 4


def test_replay_in_capture_is_captured(stream):
    one, other, inner, outer = forebay.zeros(1), forebay.zeros(1), Graph(), Graph()
    capture(inner, lambda: other.copy_(one))

    def both():
        one.fill_(4)
        inner.replay()

    capture(outer, both)
    assert other.tolist() == [0]
    inner.reset()
    outer.replay()
    assert other.tolist() == [4]


def test_empty_graph_warns_and_can_be_replayed(stream):
    graph = Graph()
    with pytest.warns(UserWarning, match="Graph is empty"):
        capture(graph, lambda: None)
    graph.replay()
