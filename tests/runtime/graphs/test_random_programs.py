"""Random programs over three streams: n replays are equivalent to n eager runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graph_scenes import capture

import forebay
from forebay.runtime.graphs.graph import Graph

CELLS, WIDTH = 6, 4

cells = st.integers(0, CELLS - 1)
streams = st.integers(0, 2)
operations = st.one_of(
    st.tuples(st.just("copy"), streams, cells, cells),
    st.tuples(st.just("fill"), streams, cells, st.sampled_from([0.0, 1.5, 3.0])),
    st.tuples(st.just("draw"), streams, cells, st.just(0)),
    st.tuples(st.just("add"), streams, cells, cells),
)
programs = st.lists(operations, min_size=1, max_size=15)


class Program:
    """Operations on several streams; operations on the same memory are ordered."""

    def __init__(self, place, operations):
        self.streams = [forebay.Stream(place) for _ in range(3)]
        self.generator = forebay.Generator(place.kind)
        with self.streams[0]:
            self.memory = forebay.zeros(CELLS, WIDTH, device=place)
        self.operations = operations

    def begin(self):
        for stream in self.streams[1:]:
            stream.wait_stream(self.streams[0])

    def run(self):
        """Run the program once, forked from and joined to the first stream."""
        self.begin()
        last = [self.streams[0]] * CELLS  # the stream that last used each cell
        for name, on, cell, what in self.operations:
            stream = self.streams[on]
            touched = {cell, what} if name in {"copy", "add"} else {cell}
            for other in {last[at] for at in touched}:
                stream.wait_stream(other)
            with stream:
                self.do(name, self.memory[cell], what)
            for at in touched:
                last[at] = stream
        for stream in self.streams[1:]:
            self.streams[0].wait_stream(stream)

    def do(self, name, row, what):
        if name == "copy":
            row.copy_(self.memory[what])
        elif name == "fill":
            row.fill_(what)
        elif name == "draw":
            row.uniform_(generator=self.generator)
        else:
            target, source = row.raw_array(), self.memory[what].raw_array()
            forebay.current_stream(row.device).queue.call(lambda: np.add(target, source + 1, out=target))

    def bytes(self):
        self.streams[0].synchronize()
        with self.streams[0]:
            return np.array(self.memory.tolist()).tobytes()


@pytest.mark.parametrize("place", ["cpu", "cuda"], indirect=True)
def test_replays_are_equivalent_to_eager_runs(place):
    @settings(max_examples=60, deadline=None)
    @given(programs, st.integers(1, 4))
    def holds(operations, times):
        forebay.memory.empty_cache(place)  # a capture cannot empty the cache
        eager, recorded, graph = Program(place, operations), Program(place, operations), Graph()
        with forebay.use_device(place):
            for _ in range(times):
                eager.run()
            with recorded.streams[0]:
                capture(graph, recorded.run)
                for at in range(times):
                    with recorded.streams[at % 3]:
                        graph.replay()
                for stream in recorded.streams:
                    stream.synchronize()
        assert recorded.bytes() == eager.bytes()
        assert recorded.generator.get_state().tolist() == eager.generator.get_state().tolist()

    holds()
