"""Graph states from capture to reset."""

from __future__ import annotations

import gc
import threading

import pytest
from support.graph_scenes import capture

import forebay
from forebay.errors import DeviceError
from forebay.runtime.graphs.graph import Graph
from forebay.runtime.memory import transfer

ERRORS_BEFORE_CAPTURE = {
    "capture_end": "capture_end() called before capture_begin().",
    "capture_end_pre": "capture_end() called before capture_begin().",
    "replay": "capture_end() must have been called before calling instantiate",
    "instantiate": "capture_end() must have been called before calling instantiate",
    "pool": "Called Graph::pool() without a preceding successful capture.",
    "pools": "Called Graph::pools() without a preceding successful capture.",
    "raw_cuda_graph_exec": "You cannot access the raw cudaGraphExec_t instance until instantiate() has been called",
    "raw_cuda_graph": "No cudaGraph_t is available: either capture_end() has not been called, or the underlying "
    "cudaGraph_t was destroyed (keep_graph=false, and capture has been finalized).",
}


@pytest.mark.parametrize("name", ERRORS_BEFORE_CAPTURE)
def test_calls_before_capture_raise(stream, name):
    with pytest.raises(RuntimeError) as raised:
        getattr(Graph(), name)()
    assert str(raised.value) == ERRORS_BEFORE_CAPTURE[name]
    assert Graph().capture_end_post() is None
    assert Graph().reset() is None


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"capture_error_mode": "x"}, RuntimeError, "Expected `global`, `thread_local`, or `relaxed`, got x"),
        ({"pool": (1, 1)}, RuntimeError, "one of the two numbers must be 0"),
        ({"pool": 3}, TypeError, "a MemPool or a tuple of two ints"),
        ({"pool": (0, "1")}, TypeError, "a MemPool or a tuple of two ints"),
    ],
    ids=["mode", "two nonzero numbers", "int", "str"],
)
def test_capture_begin_rejects_invalid_arguments(stream, arguments, kind, message):
    with pytest.raises(kind, match=message):
        Graph().capture_begin(**arguments)
    assert not stream.is_capturing()


def test_default_stream_cannot_be_captured(place):
    with (
        forebay.use_device(place),
        forebay.runtime.streams.stream.default_stream(place),
        pytest.raises(RuntimeError, match="must be captured on a non-default stream"),
    ):
        Graph().capture_begin()


def test_graph_captures_once_until_reset(stream):
    numbers, graph = forebay.zeros(1), Graph()
    graph.capture_begin()
    with pytest.raises(DeviceError, match="present state"):
        Graph().capture_begin()
    with pytest.raises(DeviceError, match="present state"):
        graph.capture_begin()
    numbers.fill_(1)
    graph.capture_end()
    with pytest.raises(RuntimeError, match="already owns a captured graph"):
        graph.capture_begin()
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding"):
        graph.pool()
    capture(graph, lambda: numbers.fill_(2))
    graph.replay()
    assert numbers.tolist() == [2]


def test_capture_ends_on_its_stream(stream):
    numbers, graph = forebay.zeros(1), Graph()
    graph.capture_begin()
    numbers.fill_(1)
    with (
        forebay.Stream(stream.device),
        pytest.raises(RuntimeError, match=r"Capture must end on the same stream it began on\."),
    ):
        graph.capture_end()
    graph.capture_end()


@pytest.mark.parametrize("keep", [False, True], ids=["not kept", "kept"])
def test_handles_are_available_after_their_step(stream, keep):
    numbers, graph = forebay.zeros(1), Graph(keep)
    graph.capture_begin()
    numbers.fill_(1)
    graph.capture_end_pre()
    assert graph.raw_cuda_graph()
    with pytest.raises(RuntimeError):
        graph.raw_cuda_graph_exec()
    graph.instantiate()
    first = graph.raw_cuda_graph_exec()
    graph.capture_end_post()
    if keep:
        assert graph.raw_cuda_graph()
        graph.instantiate()
        assert graph.raw_cuda_graph_exec() != first
    else:
        with pytest.raises(RuntimeError, match="No cudaGraph_t"):
            graph.raw_cuda_graph()
        with pytest.raises(RuntimeError, match="only when keep_graph=true"):
            graph.instantiate()
    graph.replay()
    assert numbers.tolist() == [1]


def test_first_replay_instantiates_kept_graph(stream):
    numbers, graph = forebay.zeros(1), Graph(keep_graph=True)
    capture(graph, lambda: numbers.fill_(1))
    with pytest.raises(RuntimeError):
        graph.raw_cuda_graph_exec()
    graph.replay()
    assert graph.raw_cuda_graph_exec()


def test_destroying_graph_during_capture_ends_capture(stream):
    numbers, graph = forebay.zeros(1), Graph()
    graph.capture_begin()
    numbers.fill_(1)
    del graph
    gc.collect()
    assert not stream.is_capturing()
    numbers.fill_(2)
    assert numbers.tolist() == [2]


def test_reset_keeps_copy_sources_until_replay_completes(stream):
    numbers, graph, gate = forebay.zeros(4), Graph(), threading.Event()
    pinned = forebay.empty_pinned(4, dtype="float32")
    pinned[:] = 6
    graph.capture_begin()
    numbers.copy_(pinned, non_blocking=True)
    graph.capture_end()
    stream.queue.call(lambda: gate.wait(20))
    graph.replay()
    del pinned
    graph.reset()
    forebay.empty_pinned(4, dtype="float32")[:] = 7  # not the same memory
    gate.set()
    assert numbers.tolist() == [6] * 4


def test_graph_does_not_hold_tensors(place, stream):
    """A tensor that is dropped during or after the capture returns to the graph's pool, as in PyTorch."""
    before, graph, source = forebay.memory.memory_allocated(place), Graph(), forebay.zeros(1000, device=place)
    graph.capture_begin()
    made = forebay.full((1000,), 1.5, device=place)
    made.copy_(source[::1].to("float64"))
    made[::2].copy_(source[1::2])
    del made
    assert forebay.memory.memory_allocated(place) == before + 4096
    kept = forebay.full((1000,), 2.5, device=place)
    graph.capture_end()
    graph.replay()
    assert kept[::500].tolist() == [2.5, 2.5]
    del kept, source
    assert forebay.memory.memory_allocated(place) == before


def test_graph_frees_its_objects_at_its_end_if_no_replay_is_pending(place, stream, monkeypatch):
    """A NumPy function that was captured keeps its tensors alive."""
    monkeypatch.setattr(transfer, "can_copy_strided", lambda queue: False)
    before = forebay.memory.memory_allocated(place)
    for replays in (0, 2):
        graph = Graph()
        made = capture(graph, lambda: forebay.full((1000,), 1.5, device=place))
        for _ in range(replays):
            graph.replay()
        stream.synchronize()
        del made
        assert forebay.memory.memory_allocated(place) > before
        graph.reset()
        assert forebay.memory.memory_allocated(place) == before


def test_graph_frees_its_objects_after_pending_replays(place, stream, monkeypatch):
    monkeypatch.setattr(transfer, "can_copy_strided", lambda queue: False)
    before, graph, gate = forebay.memory.memory_allocated(place), Graph(), threading.Event()
    made = capture(graph, lambda: forebay.full((1000,), 1.5, device=place))
    stream.queue.call(lambda: gate.wait(20))
    graph.replay()
    del made
    graph.reset()
    assert forebay.memory.memory_allocated(place) > before
    gate.set()
    stream.synchronize()
    assert forebay.memory.memory_allocated(place) == before


def test_graph_deleted_during_another_capture_leaves_it_valid(place, stream):
    numbers, first, second = forebay.zeros(4), Graph(), Graph()
    capture(first, lambda: numbers.fill_(1.5))
    first.replay()
    second.capture_begin()
    del first
    gc.collect()
    numbers.fill_(2.5)
    second.capture_end()
    second.replay()
    assert numbers.tolist() == [2.5] * 4
