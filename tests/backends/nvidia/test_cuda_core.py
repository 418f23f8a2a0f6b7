"""NVIDIA's own cuda.core runs unchanged on the software driver, which proves that it behaves as the real one does."""

from __future__ import annotations

import sys

import pytest
from support.software_driver import lines_of_client

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

BEGIN = """
import ctypes, gc
from cuda.core import Device, EventOptions, StreamOptions
from cuda.core.graph import GraphBuilder, GraphDefinition

soft = ctypes.CDLL("libcuda.so.1")

def live():
    types = "graphs graph_execs captures events device".split()
    return {name: count for name in types if (count := soft.softcuda_live(name.encode()))}

def bytes_of(buffer, count):
    return list(ctypes.string_at(int(buffer.handle), count))

device = Device(0)
device.set_current()
stream = device.create_stream()
one, two = device.allocate(64, stream=stream), device.allocate(64, stream=stream)
one.fill(0, stream=stream)
two.fill(0, stream=stream)
"""


def output_of(program: str) -> list[str]:
    return lines_of_client(BEGIN + program, needs="cuda.core")


def test_device_stream_event_buffer_and_copy():
    program = """
print(device.name, device.compute_capability, device.context is not None, device.properties.warp_size)
other = device.create_stream(options=StreamOptions(nonblocking=True, priority=-1))
one.fill(7, stream=stream)
event = stream.record(options=EventOptions(timing_enabled=True))
other.wait(event)
two.copy_from(one, stream=other)
end = other.record(options=EventOptions(timing_enabled=True))
end.sync()
print(event.is_done, end - event >= 0, bytes_of(two, 3))
other.wait(stream)
other.sync()
print(other.priority, other.is_nonblocking, stream.device.device_id)
stream.close()
other.close()
"""
    assert output_of(program) == [
        "Software device ComputeCapability(major=9, minor=0) True 32",
        "True True [7, 7, 7]",
        "-1 True 0",
    ]


def test_captured_graph_of_two_streams():
    program = """
seen = []
builder = device.create_graph_builder().begin_building()
builder.callback(lambda: seen.append("both"))
left, right = builder.split(2)
left.callback(lambda: seen.append("left"))
right.callback(lambda: seen.append("right"))
joined = GraphBuilder.join(left, right)
joined.callback(lambda: seen.append("end"))
graph = joined.end_building().complete()
joined.close()
print(seen)
for _ in range(2):
    graph.upload(stream)
    graph.launch(stream)
stream.sync()
print(seen[0], sorted(seen[1:3]), seen[3], len(seen))
graph.close()
print(live())
"""
    assert output_of(program) == ["[]", "both ['left', 'right'] end 8", "{'device': 2}"]


def test_defined_graph_with_all_kinds_of_nodes(tmp_path):
    program = f"""
seen = []
event = device.create_event()
child = GraphDefinition()
child.memset(int(two.handle) + 1, 9, 1)
definition = GraphDefinition()
filled = definition.memset(one, 3, 64)
copied = filled.memcpy(two, one, 16)
called = copied.callback(lambda: seen.append(bytes_of(two, 2)))
last = called.record(event).join(filled).embed(child)
print(sorted(type(node).__name__ for node in definition.nodes()), len(definition.edges()))
body = last.if_then(definition.create_condition(default_value=1)).then
body.memset(int(two.handle) + 2, 5, 1)
definition.debug_dot_print({str(tmp_path / "graph.dot")!r})
graph = definition.instantiate()
graph.launch(stream)
stream.sync()
print(seen, bytes_of(two, 4), event.is_done)
del definition, child, filled, copied, called, last, body, graph
gc.collect()
"""
    kinds = ["ChildGraphNode", "EmptyNode", "EventRecordNode", "HostCallbackNode", "MemcpyNode", "MemsetNode"]
    assert output_of(program) == [f"{kinds} 6", "[[3, 3]] [3, 9, 5, 3] True"]
    assert "MEMCPY" in (tmp_path / "graph.dot").read_text()
