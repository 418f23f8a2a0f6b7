"""A replay on memory that is gone is CUDA's error 700, and nothing of it is done; the process goes on."""

from __future__ import annotations

from functools import partial

import pytest
from support.graph_scenes import captured

import forebay
from forebay.errors import DeviceError
from forebay.runtime.graphs.graph import Graph

LENGTH = 16 << 20  # bytes: a segment of its own


def made(place, number=1):
    return forebay.full((LENGTH,), number, dtype="uint8", device=place)


def is_gone(graph, stream):
    with pytest.raises(DeviceError, match="an illegal memory access was encountered") as raised:
        graph.replay()
    stream.synchronize()
    assert raised.value.code == 700
    assert "keep the tensors that a graph reads and writes" in str(raised.value)


WORK = {
    "read": lambda given, kept: kept.copy_(given),
    "filled": lambda given, kept: given.fill_(4),
    "copied to": lambda given, kept: given.copy_(kept),
    "drawn": lambda given, kept: given.random_(0, 9),
    "chances": lambda given, kept: kept.view("float32").bernoulli_(given.view("float32")),
    "a part": lambda given, kept: given[100:200].fill_(4),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_what_a_graph_used_and_the_device_gave_back(place, stream, work):
    given, kept, graph = made(place), made(place), Graph()
    captured(graph, partial(work, given, kept))
    graph.replay()
    forebay.memory.empty_cache()  # nothing of its memory
    graph.replay()
    stream.synchronize()
    before = kept[:3].tolist()
    del given
    graph.replay()  # its memory is the allocator's still
    forebay.memory.empty_cache()
    is_gone(graph, stream)
    is_gone(graph, stream)
    assert kept[:3].tolist() == before


def test_other_memory_may_go(place, stream):
    given, other, graph = made(place), made(place), Graph()
    captured(graph, lambda: given.fill_(4))
    del other
    forebay.memory.empty_cache()
    graph.replay()
    assert given[:2].tolist() == [4, 4]


def test_the_memory_of_a_part(place, stream):
    """A graph in a graph: the outer one has the inner one's memory."""
    given, inner, outer = made(place), Graph(), Graph()
    captured(inner, partial(given.fill_, 4))
    captured(outer, inner.replay)
    outer.replay()
    del given
    forebay.memory.empty_cache()
    is_gone(outer, stream)


def test_functions_keep_what_they_use(place, stream):
    given, kept, graph = made(place), made(place), Graph()
    captured(graph, partial(kept[::2].copy_, given[::2]))
    del given
    forebay.memory.empty_cache()
    graph.replay()
    assert kept[:3].tolist() == [1, 1, 1]


def test_pages_of_a_space(place, stream):
    """What shrinks is asked page by page."""
    forebay.memory.set_allocator_settings("expandable_segments:True")
    try:
        low, high, graph = made(place), made(place), Graph()
        captured(graph, partial(low.copy_, high))
        graph.replay()
        del high
        forebay.memory.empty_cache()
        is_gone(graph, stream)
    finally:
        forebay.memory.set_allocator_settings("expandable_segments:False")
