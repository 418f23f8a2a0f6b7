"""Random numbers in graphs: new in each replay, those that come next."""

from __future__ import annotations

import pytest
from support.graph_scenes import captured

import forebay
from forebay.runtime.graphs.graph import Graph


def test_replays_go_on_where_the_generator_is(stream):
    numbers, graph = forebay.zeros(8), Graph()
    captured(graph, lambda: (numbers.uniform_(), numbers.normal_()))
    forebay.manual_seed(7, stream.device)
    eager = [numbers.clone() for _ in range(3) if numbers.uniform_() is numbers and numbers.normal_() is numbers]
    forebay.manual_seed(7, stream.device)
    for expected in eager:
        graph.replay()
        assert numbers.tolist() == expected.tolist()
    assert forebay.runtime.random.generator.default_generator(stream.device).get_offset() == 24


def test_each_generator_has_its_own_numbers(stream):
    mine = forebay.Generator(stream.device.kind).manual_seed(1)
    numbers, others, graph = forebay.zeros(4), forebay.zeros(4), Graph()
    captured(graph, lambda: (numbers.uniform_(), others.uniform_(generator=mine), others.uniform_(generator=mine)))
    graph.replay()
    assert mine.get_offset() == 8
    twin = forebay.Generator(stream.device.kind).manual_seed(1)
    numbers.uniform_(generator=twin)
    numbers.uniform_(generator=twin)
    assert others.tolist() == numbers.tolist()


def test_a_generator_cannot_be_moved_while_a_graph_is_captured(stream):
    generator, graph = forebay.runtime.random.generator.default_generator(stream.device).manual_seed(3), Graph()
    state = generator.get_state()
    state[8] = 4
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
    assert generator.get_state()[8] == 0  # where a replay's numbers begin
    forebay.zeros(4).uniform_()
    assert generator.get_state()[8] == 4
    generator.set_state(state)
    graph.capture_end()
    assert generator.get_offset() == 0
    graph.replay()
    assert generator.get_offset() == 4


def test_two_replays_within_one_capture_have_their_own_numbers(stream):
    one, other, inner, outer = forebay.zeros(4), forebay.zeros(4), Graph(), Graph()
    captured(inner, one.uniform_)
    captured(outer, lambda: (inner.replay(), other.copy_(one), inner.replay()))
    generator = forebay.manual_seed(5, stream.device)
    outer.replay()
    assert generator.get_offset() == 8
    forebay.manual_seed(5, stream.device)
    assert other.tolist() == forebay.zeros(4).uniform_().tolist()
    assert one.tolist() == forebay.zeros(4).uniform_().tolist()
