"""Captured work of CUDA queues that kernels do: draws, strided copies and conditions."""

from __future__ import annotations

import sys

import pytest
from support.captured_queues import output_of
from support.software_driver import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")


def test_draws_of_nested_graphs_use_the_positions_of_each_launch():
    program = """
from forebay.spi import Draw
def plan(at, seed, offset):
    return Draw("uniform", "float32", memory + at, 4, (), seed, offset, 256, (0.0, 1.0, 1.0))
inner = one.begin_capture()
one.draw(plan(0, 0, 4))
one.end_capture()
outer = one.begin_capture()
one.draw(plan(16, 1, 0))
inner.launch(one, [(0, 8)])  # source 0 of the outer graph, 8 words later
one.end_capture()
default.draw(plan(64, 7, 16))  # as the inner draw
default.draw(plan(80, 5, 4))
default.wait(default.signal())
for seed in (3, 7):
    outer.launch(two, [(seed, 4), (5, 4)])
    inner.launch(one, [(9, 0)])  # must not disturb the launch before
    two.wait(two.signal())
    one.wait(one.signal())
one.fill(memory, 0, 16)
outer.launch(one, [(7, 4), (5, 4)])
one.wait(one.signal())
print(bytes_at(memory, 32) == bytes_at(memory + 64, 32))
del inner, outer
gc.collect()
print(live()["device"])
other = one.begin_capture()
print(live()["device"])
"""
    first, second, third = output_of(program)
    assert first == "True"
    assert (int(second), int(third)) == (3, 1)  # the memory of two graphs is freed later


def test_strided_copies_are_captured_without_the_host():
    program = """
from forebay.spi import StridedCopy
graph = one.begin_capture()
one.copy_strided(StridedCopy((2, 2), memory, (1, 2), "int8", 1, memory, (2, 1), may_overlap=True))
one.end_capture()
for value in range(4):
    one.fill(memory + value, value, 1)
graph.launch(one)
one.wait(one.signal())
print(bytes_at(memory, 4), [node.op for node in graph.work])
host = ctypes.create_string_buffer(4)
one.begin_capture()
print(code_of(one.copy_strided, StridedCopy((2,), memory, (2,), "int8", 1, ctypes.addressof(host), (1,))))
print(code_of(one.end_capture))
"""
    assert output_of(program) == ["[0, 2, 1, 3] ['strided']", "900", "901"]


def test_nested_conditions_and_a_stream_that_joins_a_body():
    program = """
graph = one.begin_capture()
one.fill(memory + 1, 5, 1)
graph.begin_if(one, memory)
one.fill(memory + 2, 6, 1)
graph.begin_if(one, memory + 16)
one.fill(memory + 3, 7, 1)
graph.end_body(one)
two.wait_for(one, one.signal())
two.copy(memory + 4, memory + 2, 1)
one.wait_for(two, two.signal())
graph.end_body(one)
one.copy(memory + 5, memory + 4, 1)
one.end_capture()
for outer, inner in ((0, 1), (1, 0), (2, 3)):
    default.fill(memory, 0, 8)
    default.fill(memory, outer, 1)
    default.fill(memory + 16, inner, 1)
    graph.launch(default)
    default.wait(default.signal())
    print(bytes_at(memory, 6))
outer = one.begin_capture()
try:
    graph.launch(one)
except Unsupported as error:
    print(error)
one.abandon_capture()
"""
    assert output_of(program) == [
        "[0, 5, 0, 0, 0, 0]",
        "[1, 5, 6, 0, 6, 6]",
        "[2, 5, 6, 7, 6, 6]",
        "a graph with conditional nodes cannot be a part of another graph",
    ]


def test_open_body_is_discarded_with_the_capture():
    program = """
graph = one.begin_capture()
graph.begin_while(one, memory)
one.fill(memory + 1, 5, 1)
for work in (lambda: one.call(print), lambda: graph.add_event(one, "record_event", 1, print)):
    try:
        work()
    except Unsupported as error:
        print(error)
streams = soft.softcuda_live(b"streams")
print(code_of(one.end_capture), streams - soft.softcuda_live(b"streams"))
graph = one.begin_capture()
graph.begin_if(one, memory)
one.abandon_capture()
print("captures" in live(), "graphs" in live(), streams - soft.softcuda_live(b"streams"))
"""
    assert output_of(program) == [
        "the body of a condition cannot call functions of the host",
        "the body of a condition cannot record external events",
        "904 1",
        "False False 1",
    ]


def test_graph_with_draws_is_a_part_of_another_graph_only_once():
    program = """
import forebay
from forebay import cuda
memory = forebay.empty(1024, device="cuda")
stream = cuda.Stream()
with cuda.stream(stream):
    inner, outer = cuda.CUDAGraph(), cuda.CUDAGraph()
    inner.capture_begin()
    memory.uniform_()
    inner.capture_end()
    outer.capture_begin()
    inner.replay()
    try:
        inner.replay()
    except forebay.Unsupported as error:
        print(error)
    outer.capture_end()
    outer.replay()
cuda.synchronize()
print(0 < memory.cpu().numpy().mean() < 1)
"""
    done = run(program)
    assert done.stdout.splitlines() == [
        "a graph that draws random numbers can be a part of another graph only once",
        "True",
    ], done.stderr
