"""Replays that use freed memory raise CUDA error 700 before any work is queued. The process stays usable."""

from __future__ import annotations

from functools import partial

import pytest
from support.graph_scenes import capture

import forebay
from forebay.errors import DeviceError
from forebay.runtime.graphs.graph import Graph
from forebay.runtime.memory import transfer

LENGTH = 16 << 20  # bytes: a segment of its own


def new_tensor(place, number=1):
    return forebay.full((LENGTH,), number, dtype="uint8", device=place)


def assert_replay_fails(graph, stream):
    with pytest.raises(DeviceError, match="an illegal memory access was encountered") as raised:
        graph.replay()
    stream.synchronize()
    assert raised.value.code == 700
    assert "keep the tensors that a graph reads and writes" in raised.value.__notes__[0]


WORK = {
    "read": lambda freed, kept: kept.copy_(freed),
    "fill": lambda freed, kept: freed.fill_(4),
    "write": lambda freed, kept: freed.copy_(kept),
    "draw": lambda freed, kept: freed.random_(0, 9),
    "probabilities": lambda freed, kept: kept.view("float32").bernoulli_(freed.view("float32")),
    "slice": lambda freed, kept: freed[100:200].fill_(4),
    "fill with an element": lambda freed, kept: freed.view("float32").fill_(1.5),
    "strided fill": lambda freed, kept: freed[::-2].fill_(1),
    "strided read": lambda freed, kept: kept[::2].copy_(freed[::2]),
    "strided write": lambda freed, kept: freed[::2].copy_(kept[::2]),
    "converting read": lambda freed, kept: kept[:100].copy_(freed[:400].view("float32")),
    "converting write": lambda freed, kept: freed[400:].view("float32")[:9].copy_(kept[:9]),
}


@pytest.mark.slow
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_replay_after_segment_release_raises(place, stream, work):
    freed, kept, graph = new_tensor(place), new_tensor(place), Graph()
    capture(graph, partial(work, freed, kept))
    graph.replay()
    forebay.memory.empty_cache()  # releases nothing that the graph uses
    graph.replay()
    stream.synchronize()
    before = kept[:3].tolist()
    del freed
    graph.replay()  # the allocator still caches the memory
    forebay.memory.empty_cache()
    assert_replay_fails(graph, stream)
    assert_replay_fails(graph, stream)
    assert kept[:3].tolist() == before


def test_releasing_other_memory_does_not_affect_replay(place, stream):
    freed, other, graph = new_tensor(place), new_tensor(place), Graph()
    capture(graph, lambda: freed.fill_(4))
    del other
    forebay.memory.empty_cache()
    graph.replay()
    assert freed[:2].tolist() == [4, 4]


def test_nested_graph_memory_is_checked(place, stream):
    """The outer graph also uses the inner graph's memory."""
    freed, inner, outer = new_tensor(place), Graph(), Graph()
    capture(inner, partial(freed.fill_, 4))
    capture(outer, inner.replay)
    outer.replay()
    del freed
    forebay.memory.empty_cache()
    assert_replay_fails(outer, stream)


def test_queued_functions_keep_their_tensors_alive(place, stream, monkeypatch):
    """A graph cannot check the memory that a NumPy function uses."""
    monkeypatch.setattr(transfer, "can_copy_strided", lambda queue: False)
    freed, kept, graph = new_tensor(place), new_tensor(place), Graph()
    capture(graph, partial(kept[::2].copy_, freed[::2]))
    del freed
    forebay.memory.empty_cache()
    graph.replay()
    assert kept[:3].tolist() == [1, 1, 1]


def test_decommitted_pages_are_detected(place, stream):
    """Expandable segments are checked page by page."""
    forebay.memory.set_allocator_settings("expandable_segments:True")
    try:
        low, high, graph = new_tensor(place), new_tensor(place), Graph()
        capture(graph, partial(low.copy_, high))
        graph.replay()
        del high
        forebay.memory.empty_cache()
        assert_replay_fails(graph, stream)
    finally:
        forebay.memory.set_allocator_settings("expandable_segments:False")
