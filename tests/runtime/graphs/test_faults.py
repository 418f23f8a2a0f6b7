"""A capture that fails at any step: the stream works again, no memory is lost, and the next capture is whole."""

from __future__ import annotations

import pytest
from support.graph_scenes import captured

import forebay
from forebay.errors import DeviceError
from forebay.runtime.base import capture_state
from forebay.runtime.devices.open_device import open_device
from forebay.runtime.graphs import annotations as graphs_annotations
from forebay.runtime.graphs.graph import Graph

STEPS = {
    "telling the allocator": "forebay.runtime.allocator.caching_allocator.Allocator.begin_capture",
    "recording": "forebay.backends.host.capture.HostRecording.enlist",
    "beginning": "forebay.runtime.base.capture_state.begin",
    "a request for memory": "forebay.backends.host.port.MachinePort.reserve",
    "work": "forebay.backends.host.capture.HostRecording.add",
    "a signal": "forebay.backends.host.capture.HostRecording.signal",
    "a dependency": "forebay.backends.host.capture.HostRecording.depend",
    "the end": "forebay.backends.host.capture.HostRecording.end",
    "making the program": "forebay.backends.host.capture.pieces_of",
    "instantiating": "forebay.runtime.graphs.graph.Graph.instantiate",
}


@pytest.mark.parametrize("error", [DeviceError, KeyboardInterrupt], ids=["the device", "Ctrl-C"])
@pytest.mark.parametrize("step", STEPS)
def test_a_failure_leaves_nothing(stream, step, error, monkeypatch):
    side, graph = forebay.Stream(stream.device), Graph()
    allocator = open_device(stream.device).allocator

    def work():
        made = forebay.empty(1 << 20)
        made.zero_()
        side.wait_stream(stream)
        with side:
            made.zero_()
        stream.wait_stream(side)
        return made

    def fail(*_, **__):
        raise error("planted")

    with monkeypatch.context() as planted:
        planted.setattr(STEPS[step], fail)
        with pytest.raises(error, match="planted"):
            captured(graph, work)
    graph.reset()
    assert capture_state.under_way == ()
    assert not stream.is_capturing()
    assert not side.is_capturing()
    assert dict(allocator.capturing) == {}
    allocator.empty()
    assert list(allocator.private) == []
    assert allocator.broken() is None
    made = captured(graph, work)
    graph.replay()
    assert not any(made.tolist())
    assert dict(graphs_annotations.recorded) == {}


def test_out_of_memory_in_a_capture(stream):
    """It is no reason to break the capture: who asked for too much can ask for less."""
    graph = Graph()
    graph.capture_begin()
    with pytest.raises(forebay.OutOfMemory):
        forebay.empty(1 << 50)
    made = forebay.empty(10).fill_(1)
    graph.capture_end()
    graph.replay()
    assert made.tolist() == [1] * 10


def test_work_that_fails_in_a_replay_is_told_as_any_other(stream):
    graph, done = Graph(), []
    captured(graph, lambda: (stream.queue.call(lambda: 1 / 0), stream.queue.call(lambda: done.append(1))))
    graph.replay()
    with pytest.raises(DeviceError, match="division by zero"):
        stream.synchronize()
    assert done == [1]
