"""Captures that fail at each step: the stream stays usable, no memory leaks, and the next capture succeeds."""

from __future__ import annotations

import pytest
from support.graph_scenes import capture

import forebay
from forebay.errors import DeviceError
from forebay.runtime.base import capture_state
from forebay.runtime.devices.open_device import open_device
from forebay.runtime.graphs import annotations as graphs_annotations
from forebay.runtime.graphs.graph import Graph

STEPS = {
    "beginning in the allocator": "forebay.runtime.allocator.caching_allocator.Allocator.begin_capture",
    "enlisting the queue": "forebay.backends.host.capture.HostCapturedGraph.add_queue",
    "registering the capture": "forebay.runtime.base.capture_state.begin",
    "reserving memory": "forebay.backends.host.port.BaseHostPort.reserve",
    "adding work": "forebay.backends.host.capture.HostCapturedGraph.add",
    "signalling": "forebay.backends.host.capture.HostCapturedGraph.signal",
    "adding a dependency": "forebay.backends.host.capture.HostCapturedGraph.add_dependency",
    "ending": "forebay.backends.host.capture.HostCapturedGraph.end",
    "compiling the program": "forebay.backends.host.capture.pieces_of",
    "instantiating": "forebay.runtime.graphs.graph.Graph.instantiate",
}


@pytest.mark.slow
@pytest.mark.parametrize("error", [DeviceError, KeyboardInterrupt], ids=["DeviceError", "KeyboardInterrupt"])
@pytest.mark.parametrize("step", STEPS)
def test_failed_capture_leaves_no_state(stream, step, error, monkeypatch):
    side, graph = forebay.Stream(stream.device), Graph()
    allocator = open_device(stream.device).allocator

    def work():
        tensor = forebay.empty(1 << 20)
        tensor.zero_()
        side.wait_stream(stream)
        with side:
            tensor.zero_()
        stream.wait_stream(side)
        return tensor

    def fail(*_, **__):
        raise error("planted")

    with monkeypatch.context() as planted:
        planted.setattr(STEPS[step], fail)
        with pytest.raises(error, match="planted"):
            capture(graph, work)
    graph.reset()
    assert capture_state.active == ()
    assert not stream.is_capturing()
    assert not side.is_capturing()
    assert dict(allocator.capturing) == {}
    allocator.empty()
    assert list(allocator.private) == []
    assert allocator.check_invariants() is None
    tensor = capture(graph, work)
    graph.replay()
    assert not any(tensor.tolist())
    assert dict(graphs_annotations.recorded) == {}


def test_out_of_memory_does_not_break_capture(stream):
    """The program can then allocate less."""
    graph = Graph()
    graph.capture_begin()
    with pytest.raises(forebay.OutOfMemory):
        forebay.empty(1 << 50)
    made = forebay.empty(10).fill_(1)
    graph.capture_end()
    graph.replay()
    assert made.tolist() == [1] * 10


def test_failure_in_replay_is_raised_by_synchronize(stream):
    graph, done = Graph(), []
    capture(graph, lambda: (stream.queue.call(lambda: 1 / 0), stream.queue.call(lambda: done.append(1))))
    graph.replay()
    with pytest.raises(DeviceError, match="division by zero"):
        stream.synchronize()
    assert done == [1]
