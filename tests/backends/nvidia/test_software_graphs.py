"""Stream capture and graphs of the software driver follow the rules of NVIDIA's documentation."""

from __future__ import annotations

import sys

import pytest
from support.software_driver import lines_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

BEGIN = """
import ctypes, threading
from cuda.bindings import driver as api

soft = ctypes.CDLL("libcuda.so.1")
Mode, Status, Type = api.CUstreamCaptureMode, api.CUstreamCaptureStatus, api.CUgraphNodeType
GLOBAL, LOCAL, RELAXED = list(Mode)[:3]

def do(name, *arguments):
    result = getattr(api, name)(*arguments)
    assert not result[0], (name, result[0])
    return result[1] if len(result) == 2 else result[1:]

def short(failed):
    return failed.name.removeprefix("CUDA_").removeprefix("ERROR_").removeprefix("STREAM_CAPTURE_")

def code(name, *arguments):
    return short(getattr(api, name)(*arguments)[0])

def live():
    types = "graphs graph_execs captures user_objects events device pinned".split()
    return {name: count for name in types if (count := soft.softcuda_live(name.encode()))}

def new_stream():
    return do("cuStreamCreate", api.CUstream_flags.CU_STREAM_NON_BLOCKING)

def status(stream):
    return Status(do("cuStreamIsCapturing", stream)).name.rpartition("_")[2]

def end(stream):
    failed, graph = api.cuStreamEndCapture(stream)
    return short(failed), graph

def replayed(graph, on):
    executable = do("cuGraphInstantiate", graph, 0)
    do("cuGraphLaunch", executable, on)
    do("cuStreamSynchronize", on)
    do("cuGraphExecDestroy", executable)

def bytes_at(address, count):
    return list(ctypes.string_at(int(address), count))

def types_of(graph):
    nodes, count = do("cuGraphGetNodes", graph, 100)
    return [Type(do("cuGraphNodeGetType", node)).name.removeprefix("CU_GRAPH_NODE_TYPE_") for node in nodes[:count]]

do("cuInit", 0)
context = do("cuDevicePrimaryCtxRetain", 0)
do("cuCtxSetCurrent", context)
first, second = new_stream(), new_stream()
memory = do("cuMemAlloc", 4096)
event = do("cuEventCreate", 0)
do("cuMemsetD8Async", memory, 0, 4096, first)
do("cuStreamSynchronize", first)
"""


def output_of(program: str) -> list[str]:
    return lines_of(BEGIN + program)


def test_captured_work_of_two_streams_is_replayed_in_order():
    program = """
Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
seen = []
function = Function(lambda _: seen.append(bytes_at(memory, 8)))
do("cuStreamBeginCapture", first, GLOBAL)
do("cuMemsetD8Async", memory, 1, 4, first)
do("cuEventRecord", event, first)
do("cuStreamWaitEvent", second, event, 0)
do("cuMemcpyAsync", int(memory) + 4, memory, 2, second)
do("cuMemsetD8Async", int(memory) + 2, 2, 1, first)
do("cuEventRecord", event, second)
do("cuStreamWaitEvent", first, event, 0)
do("cuLaunchHostFunc", first, ctypes.cast(function, ctypes.c_void_p).value, 0)
print(status(first), status(second), bytes_at(memory, 8))
_, _, graph_of_capture, nodes, _, count = do("cuStreamGetCaptureInfo", first)
print(count)
_, graph = end(first)
print(status(first), status(second), types_of(graph), int(graph) == int(graph_of_capture))
pairs = do("cuGraphGetEdges", graph, 10)
print(pairs[-1], do("cuGraphGetRootNodes", graph, 10)[1])
replayed(graph, second)
do("cuMemsetD8Async", memory, 0, 4096, second)
replayed(graph, second)
print(seen)
do("cuGraphDestroy", graph)
print(live())
"""
    assert output_of(program) == [
        "ACTIVE ACTIVE [0, 0, 0, 0, 0, 0, 0, 0]",
        "1",
        "NONE NONE ['MEMSET', 'MEMCPY', 'MEMSET', 'HOST'] True",
        "4 1",
        str([[1, 1, 2, 1, 1, 1, 0, 0]] * 2),
        "{'events': 1, 'device': 1}",
    ]


RULES = {
    "query of the stream": ("cuStreamQuery, first", "UNSUPPORTED INVALIDATED"),
    "wait for the stream": ("cuStreamSynchronize, first", "UNSUPPORTED INVALIDATED"),
    "wait for the context": ("cuCtxSynchronize,", "UNSUPPORTED INVALIDATED"),
    "allocation": ("cuMemAlloc, 4096", "UNSUPPORTED INVALIDATED"),
    "query of a captured event": ("cuEventSynchronize, captured", "UNSUPPORTED INVALIDATED"),
    "wait for uncaptured work": ("cuStreamWaitEvent, first, event, 0", "ISOLATION INVALIDATED"),
    "wait for an event of an ended capture": ("cuStreamWaitEvent, first, old, 0", "CAPTURED_EVENT INVALIDATED"),
    "event of another capture": ("cuStreamWaitEvent, third, captured, 0", "MERGE INVALIDATED"),
    "capture of a capturing stream": ("cuStreamBeginCapture, first, GLOBAL", "ILLEGAL_STATE ACTIVE"),
    "end on a stream that joined": ("cuStreamEndCapture, second", "UNMATCHED INVALIDATED"),
    "launch": ("cuGraphLaunch, executable, first", "UNSUPPORTED INVALIDATED"),
    "external record elsewhere": ("cuEventRecordWithFlags, event, fourth, 1", "INVALID_VALUE ACTIVE"),
    "record in another stream": ("cuEventRecord, event, fourth", "SUCCESS ACTIVE"),
}


@pytest.mark.parametrize("rule", RULES)
def test_rule_of_captures(rule):
    call, expected = RULES[rule]
    name, _, arguments = call.partition(",")
    program = f"""
third, fourth = new_stream(), new_stream()
captured, old = do("cuEventCreate", 0), do("cuEventCreate", 0)
do("cuEventRecord", event, fourth)
do("cuStreamBeginCapture", third, GLOBAL)
do("cuEventRecord", old, third)
graph = end(third)[1]
executable = do("cuGraphInstantiate", graph, 0)
do("cuStreamBeginCapture", third, RELAXED)
do("cuStreamBeginCapture", first, GLOBAL)
do("cuMemsetD8Async", memory, 1, 4, first)
do("cuEventRecord", captured, first)
do("cuStreamWaitEvent", second, captured, 0)
print(code("{name}", {arguments}), status(first))
failed = end(first)[0]
assert (failed == "INVALIDATED") == (status(first) != "NONE" or "{expected}".endswith("INVALIDATED")), failed
end(third)
print(do("cuStreamSynchronize", first), do("cuStreamSynchronize", second), status(third))
"""
    assert output_of(program)[0] == expected
    assert output_of(program)[1] == "() () NONE"


def test_end_of_a_capture():
    program = """
print(end(first))
do("cuStreamBeginCapture", first, GLOBAL)
other = []
thread = threading.Thread(target=lambda: other.append((do("cuCtxSetCurrent", context), end(first)[0])))
thread.start()
thread.join(10)
print(other[0][1], status(first))
do("cuEventRecord", event, first)
do("cuStreamWaitEvent", second, event, 0)
do("cuMemsetD8Async", memory, 1, 4, second)
failed, graph = end(first)
print(failed, graph, status(second))
do("cuStreamBeginCapture", first, GLOBAL)
do("cuEventRecord", event, first)
do("cuStreamWaitEvent", second, event, 0)
do("cuMemsetD8Async", memory, 1, 4, second)
graph = do("cuStreamGetCaptureInfo", second)[2]
node = do("cuGraphGetNodes", graph, 1)[0][0]
do("cuStreamUpdateCaptureDependencies", first, [node], None, 1, 1)
failed, graph = end(first)
print(failed, types_of(graph))
do("cuGraphDestroy", graph)
do("cuStreamBeginCapture", first, GLOBAL)
do("cuMemsetD8Async", memory, 1, 4, first)
do("cuStreamDestroy", first)
print(live())
"""
    assert output_of(program) == [
        "('ILLEGAL_STATE', None)",
        "WRONG_THREAD ACTIVE",
        "UNJOINED None NONE",
        "SUCCESS ['MEMSET']",
        "{'events': 1, 'device': 1}",
    ]


@pytest.mark.parametrize(
    ("mode", "own", "others"),
    [
        ("GLOBAL", "UNSUPPORTED", "UNSUPPORTED"),
        ("LOCAL", "UNSUPPORTED", "SUCCESS"),
        ("RELAXED", "SUCCESS", "SUCCESS"),
    ],
)
def test_unsafe_calls_depend_on_the_modes_of_capture_and_thread(mode, own, others):
    program = f"""
def attempt():
    do("cuStreamBeginCapture", first, {mode})
    print(code("cuMemAlloc", 4096), end="")
    end(first)

def relaxed():
    do("cuCtxSetCurrent", context)
    previous = do("cuThreadExchangeStreamCaptureMode", RELAXED)
    print(" in another thread, relaxed:", code("cuMemAlloc", 4096), Mode(previous) == GLOBAL, end="")
    do("cuThreadExchangeStreamCaptureMode", previous)
    print(" not relaxed:", code("cuMemAlloc", 4096))

attempt()
do("cuStreamBeginCapture", first, {mode})
thread = threading.Thread(target=relaxed)
thread.start()
thread.join(10)
"""
    assert output_of(program) == [f"{own} in another thread, relaxed: SUCCESS True not relaxed: {others}"]


def test_legacy_stream_conflicts_with_captures_of_blocking_streams():
    program = """
print(code("cuStreamBeginCapture", 0, GLOBAL))
blocking = do("cuStreamCreate", 0)
do("cuStreamBeginCapture", blocking, RELAXED)
print(code("cuStreamIsCapturing", 0), status(blocking))
print(code("cuMemsetD8Async", memory, 1, 4, 0), status(blocking))
print(end(blocking)[0])
do("cuStreamBeginCapture", first, RELAXED)
print(code("cuMemsetD8Async", memory, 1, 4, 0), status(first))
"""
    assert output_of(program) == [
        "UNSUPPORTED",
        "IMPLICIT ACTIVE",
        "IMPLICIT INVALIDATED",
        "INVALIDATED",
        "SUCCESS ACTIVE",
    ]


def test_external_events_are_recorded_and_awaited_by_each_launch():
    program = """
gate, done = do("cuEventCreate", 0), do("cuEventCreate", 0)
do("cuStreamBeginCapture", first, GLOBAL)
do("cuStreamWaitEvent", first, gate, 1)
do("cuMemsetD8Async", memory, 5, 4, first)
do("cuEventRecordWithFlags", done, first, 1)
graph = end(first)[1]
print(types_of(graph))
executable = do("cuGraphInstantiate", graph, 0)
Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
opened = threading.Event()
function = Function(lambda _: opened.wait(10))
do("cuLaunchHostFunc", second, ctypes.cast(function, ctypes.c_void_p).value, 0)
do("cuEventRecord", gate, second)
do("cuGraphLaunch", executable, first)
print(code("cuEventQuery", done), bytes_at(memory, 1))
opened.set()
do("cuEventSynchronize", done)
print(code("cuEventQuery", done), bytes_at(memory, 1))
do("cuEventDestroy", done)
print(code("cuGraphLaunch", executable, first))
"""
    assert output_of(program) == [
        "['WAIT_EVENT', 'MEMSET', 'EVENT_RECORD']",
        "NOT_READY [0]",
        "SUCCESS [5]",
        "INVALID_HANDLE",
    ]


def test_explicit_graph_with_child_and_condition():
    program = """
def node_params(kind):
    params = api.CUgraphNodeParams()
    params.type = kind
    return params

def fill(graph, value, at, *after):
    params = api.CUDA_MEMSET_NODE_PARAMS()
    params.dst, params.value, params.elementSize, params.width, params.height = int(memory) + at, value, 1, 1, 1
    return do("cuGraphAddMemsetNode", graph, list(after), len(after), params, context)

child = do("cuGraphCreate", 0)
fill(child, 1, 0)
graph = do("cuGraphCreate", 0)
one = do("cuGraphAddChildGraphNode", graph, [], 0, child)
do("cuGraphDestroy", child)
two = fill(graph, 2, 1, one)
joined = do("cuGraphAddEmptyNode", graph, [one, two], 2)
for initial in (0, 1):
    params = node_params(Type.CU_GRAPH_NODE_TYPE_CONDITIONAL)
    condition = params.conditional
    condition.handle = do("cuGraphConditionalHandleCreate", graph, context, initial, 1)
    condition.type, condition.size, condition.ctx = api.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF, 2, context
    do("cuGraphAddNode", graph, [joined], None, 1, params)
    bodies = params.conditional.phGraph_out
    fill(bodies[0], 3, 2 + initial)
    fill(bodies[1], 4, 2 + initial)
    print(code("cuGraphAddEventRecordNode", bodies[0], [], 0, event))
print(types_of(graph))
replayed(graph, first)
print(bytes_at(memory, 4))
print(code("cuGraphClone", graph))
do("cuGraphConditionalHandleCreate", graph, context, 0, 0)
print(code("cuGraphInstantiate", graph, 0))
do("cuGraphDestroy", graph)
print(live())
"""
    assert output_of(program) == [
        "NOT_SUPPORTED",
        "NOT_SUPPORTED",
        "['GRAPH', 'MEMSET', 'EMPTY', 'CONDITIONAL', 'CONDITIONAL']",
        "[1, 2, 4, 3]",
        "NOT_SUPPORTED",
        "INVALID_VALUE",
        "{'events': 1, 'device': 1}",
    ]


def test_executable_graph_is_updated_only_to_the_same_topology(tmp_path):
    program = f"""
def captured(*values):
    do("cuStreamBeginCapture", first, GLOBAL)
    for at, value in enumerate(values):
        do("cuMemsetD8Async", int(memory) + at, value, 1, first)
    return end(first)[1]

graph = captured(1, 2)
executable = do("cuGraphInstantiate", graph, 0)
for other in (captured(3, 4), captured(5, 6, 7)):
    print(code("cuGraphExecUpdate", executable, other))
do("cuGraphLaunch", executable, first)
do("cuGraphDestroy", graph)
do("cuGraphExecDestroy", executable)
do("cuStreamSynchronize", first)
print(bytes_at(memory, 3))
do("cuGraphDebugDotPrint", other, {str(tmp_path / "graph.dot")!r}.encode(), 0)
nodes = do("cuGraphGetNodes", other, 3)[0]
print(code("cuGraphAddDependencies", other, [nodes[2]], [nodes[0]], None, 1), code("cuGraphInstantiate", other, 0))
"""
    assert output_of(program) == [
        "SUCCESS",
        "GRAPH_EXEC_UPDATE_FAILURE",
        "[3, 4, 0]",
        "SUCCESS INVALID_VALUE",
    ]
    assert (tmp_path / "graph.dot").read_text().count("MEMSET") == 3


def test_user_object_lives_until_its_graphs_and_launches_end():
    program = """
released = threading.Event()
Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
function = Function(lambda _: released.set())
graph = do("cuGraphCreate", 0)
pointer = ctypes.cast(function, ctypes.c_void_p).value
thing = do("cuUserObjectCreate", 1, pointer, 1, 1)
do("cuGraphRetainUserObject", graph, thing, 1, 1)
executable = do("cuGraphInstantiate", graph, 0)
do("cuGraphDestroy", graph)
print(released.is_set(), live()["user_objects"])
do("cuGraphExecDestroy", executable)
print(released.wait(10), "user_objects" in live())
"""
    assert output_of(program) == ["False 1", "True False"]
