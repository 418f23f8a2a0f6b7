"""Conditional nodes, and DOT export."""

from __future__ import annotations

import pytest
from support.graph_scenes import capture

import forebay
from forebay.errors import DeviceError, WrongState
from forebay.runtime.base import capture_state
from forebay.runtime.graphs.graph import Graph

MIB = 1 << 20


def test_if_node_executes_body_if_predicate_is_true(stream):
    on, numbers, graph = forebay.zeros(1, dtype=bool), forebay.zeros(1, dtype="uint8"), Graph(keep_graph=True)
    graph.capture_begin()
    graph.begin_capture_to_if_node(on)
    numbers.fill_(7)
    graph.end_capture_to_conditional_node()
    graph.capture_end()
    graph.replay()
    assert numbers.tolist() == [0]
    on.fill_(1)
    graph.replay()
    assert numbers.tolist() == [7]
    with pytest.warns(UserWarning, match="bodies of conditional nodes"):
        data = graph.get_graph_data()
    assert [node["node_type"] for node in data["nodes"]] == ["conditional"]


def test_body_can_fill_and_convert(stream):
    on, numbers, integers, graph = (
        forebay.ones(1, dtype=bool),
        forebay.zeros(4),
        forebay.zeros(4, dtype="int64"),
        Graph(),
    )
    graph.capture_begin()
    graph.begin_capture_to_if_node(on)
    numbers[1:].fill_(7.5)
    integers.copy_(numbers)
    graph.end_capture_to_conditional_node()
    graph.capture_end()
    graph.replay()
    assert integers.tolist() == [0, 7, 7, 7]


def test_while_node_repeats_body_while_predicate_is_true(stream):
    flags, graph = forebay.tensor([True] * 5 + [False] * 3, device=stream.device), Graph()
    shifted = forebay.zeros(7, dtype=bool)
    on = flags[0]
    graph.capture_begin()
    graph.begin_capture_to_while_node(on)
    shifted.copy_(flags[1:])
    flags[:7].copy_(shifted)
    graph.set_conditional_handle_for_current_node(on)
    graph.end_capture_to_conditional_node()
    graph.capture_end()
    graph.replay()
    assert flags.tolist() == [False] * 8


def test_conditional_calls_outside_body_raise(stream):
    graph, on = Graph(), forebay.zeros(1, dtype=bool)
    with pytest.raises(RuntimeError, match=r"capture_begin\(\) must be called before"):
        graph.begin_capture_to_if_node(on)
    graph.capture_begin()
    with pytest.raises(RuntimeError, match="Missing capture ID for conditional node"):
        graph.end_capture_to_conditional_node()
    with pytest.raises(RuntimeError, match="No active CUDA graph conditional node"):
        graph.set_conditional_handle_for_current_node(on)
    with pytest.raises(RuntimeError, match="a bool tensor with one element"):
        graph.begin_capture_to_if_node(forebay.zeros(2))
    graph.begin_capture_to_if_node(on)
    with pytest.raises(RuntimeError, match="RNG within data-dependent conditional nodes"):
        forebay.zeros(4).uniform_()
    graph.reset()


def test_unfinished_body_fails_capture_end(stream):
    graph, on = Graph(), forebay.zeros(1, dtype=bool)
    graph.capture_begin()
    graph.begin_capture_to_if_node(on)
    with pytest.raises(DeviceError) as raised:
        graph.capture_end()
    assert raised.value.code == 904


def test_body_cannot_call_python(stream):
    graph, on, numbers = Graph(), forebay.zeros(1, dtype=bool), forebay.zeros(2)
    graph.capture_begin()
    graph.begin_capture_to_if_node(on)
    stream.queue.call(print)
    graph.end_capture_to_conditional_node()
    with pytest.raises(forebay.Unsupported, match="body of a condition"):
        graph.capture_end()
    numbers.fill_(2)
    assert numbers.tolist() == [2, 2]


def test_debug_dump_writes_dot(stream, tmp_path):
    numbers, out, graph = forebay.zeros(4), forebay.zeros(4), Graph()
    graph.enable_debug_mode()
    capture(
        graph,
        lambda: (
            numbers.zero_(),
            numbers.uniform_(),
            out.copy_(numbers),
            out.fill_(1.5),
            out[::2].copy_(out[1::2]),
            out.view("int32").copy_(numbers),
        ),
    )
    graph.debug_dump(str(tmp_path / "graph.dot"), verbose=False)
    lines = (tmp_path / "graph.dot").read_text().splitlines()
    assert lines == [
        "digraph graph_of_work {",
        "  node [shape=box, fontname=monospace];",
        '  n0 [label="0: fill 16 B"];',
        '  n1 [label="1: draw uniform, 4 x float32"];',
        '  n2 [label="2: copy 16 B"];',
        '  n3 [label="3: fill 4 x float32"];',
        '  n4 [label="4: copy 2 x float32"];',
        '  n5 [label="5: convert 4 x float32 to int32"];',
        *(f"  n{at} -> n{at + 1};" for at in range(5)),
        "}",
    ]
    graph.debug_dump(str(tmp_path / "graph.dot"))
    assert f"to {out.data_ptr():#x}" in (tmp_path / "graph.dot").read_text()


def test_stopping_emulation_ends_capture():
    emulation = forebay.emulate("cuda", memory=64 * MIB)
    graph = Graph()
    with forebay.Stream("cuda:0"):
        graph.capture_begin()
        emulation.stop()
    assert capture_state.active == ()
    with pytest.raises((WrongState, RuntimeError)):
        graph.replay()
    graph.reset()
