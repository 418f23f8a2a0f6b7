"""Events with `external=True` in captures: nodes of the graph, recorded and waited for by each replay."""

from __future__ import annotations

import threading

import pytest

import forebay
from forebay import cuda
from forebay.errors import DeviceError, Unsupported


@pytest.fixture(autouse=True)
def device():
    with forebay.emulate("cuda"):
        yield


@pytest.fixture
def graph():
    return cuda.CUDAGraph(keep_graph=True)


def external(**options):
    return cuda.Event(external=True, **options)


def test_replay_records_the_event(graph):
    event, memory = external(), forebay.zeros(4, device="cuda")
    with cuda.graph(graph):
        memory.fill_(1)
        event.record()
        memory.fill_(2)
    assert event.query()  # not recorded on the device yet
    assert [node.dependencies for node in graph.work] == [(), (0,), (1,)]
    assert graph.work[1].op == "record_event"
    graph.replay()
    event.synchronize()
    assert event.query()
    cuda.synchronize()
    assert memory.tolist() == [2] * 4


def test_replay_times_the_work_between_events(graph):
    start, end = external(enable_timing=True), external(enable_timing=True)
    milliseconds = []
    with cuda.graph(graph):
        start.record()
        cuda._sleep(2_000_000)
        end.record()
    with pytest.raises(DeviceError) as raised:
        start.elapsed_time(end)
    assert raised.value.code == 400
    for _ in range(2):
        graph.replay()
        end.synchronize()
        milliseconds.append(start.elapsed_time(end))
    assert min(milliseconds) > 0.5
    assert milliseconds[0] != milliseconds[1]


def test_event_is_recorded_where_it_was_captured(graph):
    """Another stream that waits for the event sees the work before it, and not the work behind it."""
    first, gate = external(), threading.Event()
    memory, seen = forebay.zeros(1, device="cuda"), forebay.zeros(1, device="cuda")
    with cuda.graph(graph):
        memory.fill_(1)
        first.record()
        cuda.current_stream().queue.call(gate.wait)
        memory.fill_(2)
    graph.replay()
    side = cuda.Stream()
    with cuda.stream(side):
        first.wait()
        seen.copy_(memory)
    side.synchronize()
    gate.set()
    assert seen.tolist() == [1]
    cuda.synchronize()
    assert memory.tolist() == [2]


def test_captured_wait_is_repeated_by_each_replay(graph):
    event, memory, copy = external(), forebay.zeros(1, device="cuda"), forebay.zeros(1, device="cuda")
    side = cuda.Stream()
    event.record(side)
    with cuda.graph(graph):
        event.wait()
        copy.copy_(memory)
    for number in (1, 2):
        gate = threading.Event()
        with cuda.stream(side):
            side.queue.call(gate.wait)
            memory.fill_(number)
            event.record()
        graph.replay()
        gate.set()
        cuda.synchronize()
        assert copy.tolist() == [number]


def test_event_orders_two_graphs(graph):
    other, event, memory = cuda.CUDAGraph(), external(), forebay.zeros(1, device="cuda")
    with cuda.graph(graph):
        memory.fill_(3)
        event.record()
    copy = forebay.zeros(1, device="cuda")
    with cuda.graph(other):
        event.wait()
        copy.copy_(memory)
    with cuda.stream(cuda.Stream()):
        graph.replay()
    with cuda.stream(cuda.Stream()):
        other.replay()
    cuda.synchronize()
    assert copy.tolist() == [3]


def test_events_of_a_graph_in_a_graph(graph):
    event, outer = external(enable_timing=True), cuda.CUDAGraph()
    with cuda.graph(graph):
        forebay.zeros(1, device="cuda")
        event.record()
    with cuda.graph(outer):
        graph.replay()
    with pytest.raises(DeviceError):
        event.elapsed_time(event)
    outer.replay()
    event.synchronize()
    assert event.elapsed_time(event) == 0


def test_nodes_of_events_are_exported(graph):
    event = external()
    with cuda.graph(graph):
        event.record()
        event.wait()
    graph.instantiate()
    nodes = graph.get_graph_data()["nodes"]
    assert [(node["node_type"], node["event_ptr"]) for node in nodes] == [
        ("event_record", event.cuda_event),
        ("wait_event", event.cuda_event),
    ]


def test_event_without_external_orders_the_capture_only(graph):
    event = cuda.Event()
    with cuda.graph(graph):
        forebay.zeros(1, device="cuda").fill_(1)
        event.record()
    assert "record_event" not in [node.op for node in graph.work]
    graph.replay()
    with pytest.raises(DeviceError) as raised:
        event.query()
    assert raised.value.code == 907


def test_external_event_outside_a_capture_is_an_event():
    event = external(enable_timing=True)
    event.record()
    event.synchronize()
    assert event.query()
    assert event.elapsed_time(event) == 0


def test_body_of_a_condition_cannot_record(graph):
    condition, event = forebay.ones(1, dtype=forebay.bool, device="cuda"), external()
    with cuda.stream(cuda.Stream()):
        graph.capture_begin()
        graph.begin_capture_to_if_node(condition)
        with pytest.raises(Unsupported):
            event.record()
        graph.reset()
