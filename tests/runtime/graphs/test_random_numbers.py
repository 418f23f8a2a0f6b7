"""Random numbers in graphs: each replay continues the generator's sequence."""

from __future__ import annotations

import pytest
from support.graph_scenes import capture

import forebay
from forebay.runtime.graphs.graph import Graph


def test_replays_continue_the_generators_sequence(stream):
    numbers, graph = forebay.zeros(8), Graph()
    capture(graph, lambda: (numbers.uniform_(), numbers.normal_()))
    forebay.manual_seed(7, stream.device)
    eager = [numbers.clone() for _ in range(3) if numbers.uniform_() is numbers and numbers.normal_() is numbers]
    forebay.manual_seed(7, stream.device)
    for expected in eager:
        graph.replay()
        assert numbers.tolist() == expected.tolist()
    assert forebay.runtime.random.generator.default_generator(stream.device).get_offset() == 24


def test_each_generator_has_its_own_sequence(stream):
    generator = forebay.Generator(stream.device.kind).manual_seed(1)
    numbers, drawn, graph = forebay.zeros(4), forebay.zeros(4), Graph()
    capture(
        graph, lambda: (numbers.uniform_(), drawn.uniform_(generator=generator), drawn.uniform_(generator=generator))
    )
    graph.replay()
    assert generator.get_offset() == 8
    twin = forebay.Generator(stream.device.kind).manual_seed(1)
    numbers.uniform_(generator=twin)
    numbers.uniform_(generator=twin)
    assert drawn.tolist() == numbers.tolist()


def test_generator_cannot_be_changed_during_capture(stream):
    generator, graph = forebay.runtime.random.generator.default_generator(stream.device).manual_seed(3), Graph()
    state = generator.get_state()
    state[8] = 4
    stream.synchronize()  # set_state() reads the state during the capture, which forbids waiting
    graph.capture_begin()
    for name, call in {
        "seed": generator.seed,
        "get_offset": generator.get_offset,
        "set_offset": lambda: generator.set_offset(4),
        "clone_impl": generator.clone_state,
    }.items():
        with pytest.raises(RuntimeError, match=f"Cannot call .*GeneratorImpl::{name} during .* graph capture"):
            call()
    with pytest.raises(RuntimeError, match="only if new seed is the same as the original seed"):
        generator.manual_seed(4)
    generator.manual_seed(3)
    assert generator.state_bytes()[8] == 0  # relative to the start of a replay
    forebay.zeros(4).uniform_()
    assert generator.state_bytes()[8] == 4
    generator.set_state(state)
    graph.capture_end()
    assert generator.get_offset() == 0
    graph.replay()
    assert generator.get_offset() == 4


def test_two_replays_in_one_capture_draw_different_numbers(stream):
    one, other, inner, outer = forebay.zeros(4), forebay.zeros(4), Graph(), Graph()
    capture(inner, one.uniform_)
    capture(outer, lambda: (inner.replay(), other.copy_(one), inner.replay()))
    generator = forebay.manual_seed(5, stream.device)
    outer.replay()
    assert generator.get_offset() == 8
    forebay.manual_seed(5, stream.device)
    assert other.tolist() == forebay.zeros(4).uniform_().tolist()
    assert one.tolist() == forebay.zeros(4).uniform_().tolist()


def test_graph_draws_from_the_states_of_its_capture(stream):
    kind = stream.device.kind
    generator, other = forebay.Generator(kind).manual_seed(1), forebay.Generator(kind).manual_seed(2)
    first = generator.graphsafe_get_state()
    one, two, graph = forebay.zeros(8), forebay.zeros(8), Graph()
    graph.capture_begin()
    one.uniform_(generator=generator)
    generator.graphsafe_set_state(other)
    two.uniform_(generator=generator)
    graph.capture_end()
    generator.graphsafe_set_state(forebay.Generator(kind))  # the graph keeps its states
    twins = forebay.Generator(kind).manual_seed(1), forebay.Generator(kind).manual_seed(2)
    for _ in range(2):
        graph.replay()
        assert [one.tolist(), two.tolist()] == [forebay.zeros(8).uniform_(generator=each).tolist() for each in twins]
    assert [first.get_offset(), other.get_offset(), generator.get_offset()] == [8, 8, 0]


def test_generators_that_share_a_state_continue_one_sequence(stream):
    generator = forebay.Generator(stream.device.kind).manual_seed(1)
    view, twin = generator.graphsafe_get_state(), forebay.Generator(stream.device.kind).manual_seed(1)
    drawn = [forebay.zeros(4).uniform_(generator=each).tolist() for each in (generator, view, generator)]
    assert drawn == [forebay.zeros(4).uniform_(generator=twin).tolist() for _ in range(3)]


def test_deleted_graph_frees_the_memory_of_its_seeds(stream):
    def active_blocks():
        return forebay.memory.memory_stats(stream.device)["active.all.current"]

    numbers, graph = forebay.zeros(4), Graph()
    before = active_blocks()
    capture(graph, numbers.uniform_)
    graph.replay()
    assert active_blocks() == before + 2
    stream.synchronize()
    del graph
    forebay.memory.empty_cache(stream.device)
    assert active_blocks() == before
