"""Tables and DOT text of graphs with conditional nodes and calls."""

from __future__ import annotations

import pytest

import forebay
from forebay.runtime.graphs import graph_export
from forebay.runtime.graphs.graph import Graph
from forebay.spi import CapturedNode

FILL = {"to": 0x1000, "nbytes": 2048, "byte": 0}
NESTED = [
    CapturedNode("fill", (), FILL),
    CapturedNode("if", (0,), {"address": 8}, range(2, 6)),
    CapturedNode("while", (), {"address": 9}, range(3, 6)),
    CapturedNode("fill", (), FILL),
    CapturedNode("set", (3,), {"address": 9, "of": 2}),
    CapturedNode("again", (4,), {"of": 2}),
    CapturedNode("fill", (1, 5), FILL),
    CapturedNode("call", (6,), {"function": print}),
]


def test_bodies_are_nested_clusters():
    assert graph_export.to_dot(NESTED, verbose=False).splitlines() == [
        "digraph graph_of_work {",
        "  node [shape=box, fontname=monospace];",
        '  n0 [label="0: fill 2.00 KiB"];',
        '  n1 [label="1: if"];',
        "  subgraph cluster_1 {",
        '    label="if 1";',
        '    n2 [label="2: while"];',
        "    subgraph cluster_2 {",
        '      label="while 2";',
        '      n3 [label="3: fill 2.00 KiB"];',
        '      n4 [label="4: set"];',
        '      n5 [label="5: again"];',
        "    }",
        "  }",
        '  n6 [label="6: fill 2.00 KiB"];',
        '  n7 [label="7: call print"];',
        "  n0 -> n1;",
        "  n3 -> n4;",
        "  n4 -> n5;",
        "  n1 -> n6;",
        "  n5 -> n6;",
        "  n6 -> n7;",
        "}",
    ]


def test_dependency_on_a_body_is_one_on_its_outermost_condition():
    with pytest.warns(UserWarning, match="bodies of conditional nodes are omitted"):
        table = graph_export.node_table(NESTED, 5)
    assert [node["node_type"] for node in table["nodes"]] == ["memset", "conditional", "memset", "host"]
    assert [(edge["from"], edge["to"]) for edge in table["edges"]] == [(0, 1), (1, 2), (2, 3)]
    assert [node["dependencies"] for node in table["nodes"]] == [[], [0], [1], [2]]
    assert [node["dependents"] for node in table["nodes"]] == [[1], [2], [3], []]
    assert table["nodes"][3]["host_fn_name"] == "print"


def test_kernels_of_fills_copies_and_conversions_are_named(stream):
    numbers, graph = forebay.zeros(8), Graph(keep_graph=True)
    graph.capture_begin()
    numbers[::2].fill_(1.5)
    numbers[::2].copy_(numbers[1::2])
    numbers.view("int32")[:4].copy_(numbers[4:])
    numbers.normal_()
    graph.capture_end()
    graph.instantiate()
    names = [node["kernel_name"] for node in graph.get_graph_data()["nodes"]]
    assert names == ["fill_float32", "copy_float32", "convert_float32", "draw_normal"]


def test_labels_escape_names():
    class Quoted:
        pass

    Quoted.__name__ = Quoted.__qualname__ = 'a"b\\c'
    (line,) = [
        line
        for line in graph_export.to_dot([CapturedNode("call", (), {"function": Quoted()})]).splitlines()
        if "call" in line
    ]
    assert line == '  n0 [label="0: call a\\"b\\\\c"];'
