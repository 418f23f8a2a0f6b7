"""Failures of the driver during a long scenario of forebay.cuda: one error, exact statistics, no leak and no hang."""

from __future__ import annotations

import inspect
import sys

import pytest
from support.cuda_faults import BEGIN, output_of
from support.interrupts import catch_interrupts
from support.software_driver import lines_of, run

CATCH = "from __future__ import annotations\n" + inspect.getsource(catch_interrupts)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")


def test_every_driver_call_fails_once():
    program = """
for _ in range(2):
    scenario()
settle()
before = counts()
scenario()
calls = {name: count - before[name] for name, count in counts().items() if count > before[name]}
settle()
made = 0
# Calls around each of the others: some of them. Queries repeat until work is done: the first one.
MOST = dict.fromkeys((b"cuCtxGetCurrent", b"cuCtxPushCurrent", b"cuCtxPopCurrent"), 6)
MOST |= {b"cuThreadExchangeStreamCaptureMode": 6, b"cuEventQuery": 1, b"cuStreamQuery": 1}
for name, count in calls.items():
    for number in range(0, count, -(-count // MOST.get(name, count))):
        soft.softcuda_fail(name, ctypes.c_uint64(number), UNKNOWN, 0)
        error, said = error_of(scenario)
        soft.softcuda_clear_faults()
        made += 1
        case = name, number, error, said
        first = error.__context__ if getattr(error, "code", None) == 901 else error  # the end of a broken capture
        assert first is None or (type(first) is DeviceError and first.code == UNKNOWN), case
        assert (error is not None) + len(said) <= 1, case
        assert all("unknown error" in text for text in said), case
        assert error_of(settle) == (None, []), case  # it was reported already
        check_statistics(case)
scenario()  # destroys the graphs of the others
settle()
rest = live()
rest["device"] -= 1  # positions of random numbers of the last graph, which the next launch frees
print(made > 90, rest["device"], {name: count for name, count in rest.items() if name not in ("contexts", "device")})
"""
    assert output_of(program) == ["True 0 {'graphs': 1, 'graph_execs': 1, 'modules': 3}"]


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_every_allocation_runs_out_of_memory(settings):
    program = """
for _ in range(2):
    scenario()
settle()
before = counts()
scenario()
settle()
calls = {name: count - before.get(name, 0) for name, count in counts().items()}
made = ooms = 0
for name in (b"cuMemAlloc", b"cuMemCreate", b"cuMemHostAlloc"):
    for number in range(calls.get(name, 0)):
        for _ in range(10):  # the allocator frees cached memory, and tries again
            soft.softcuda_fail(name, ctypes.c_uint64(number), 2, 0)
        error, said = error_of(scenario)
        soft.softcuda_clear_faults()
        made += 1
        case = name, number, error, said
        first = error.__context__ if getattr(error, "code", None) == 901 else error
        assert first.code == 2 and "out of memory" in str(first) and not said, case
        assert error_of(settle) == (None, []), case
        check_statistics(case)
        ooms += isinstance(error, OutOfMemory)
        assert sum(cuda.memory_stats(index)["num_ooms"] for index in range(2)) == ooms, case
scenario()
settle()
rest = live()
print(made >= 8, ooms >= 7, {name: count for name, count in rest.items() if name not in ("contexts", "device")})
"""
    expected = "True True {'graphs': 1, 'graph_execs': 1, 'modules': 3}"
    assert output_of(program, PYTORCH_ALLOC_CONF=settings) == [expected]


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_interrupted_calls_leave_nothing(settings):
    program = """
def error_of_interrupted(function):
    # A DeviceError is raised at the end of a capture that was interrupted.
    for error in catch_interrupts(function, KeyboardInterrupt, DeviceError):
        raised = error
        while raised is not None:
            raised.__traceback__, raised = None, raised.__context__
        return error

sys.unraisablehook = lambda info: None  # an interrupt inside a destructor
for _ in range(2):
    scenario()
settle()
before = counts()
scenario()
settle()
calls = {name: count - before[name] for name, count in counts().items()}
# Calls around each of the others, and those that query: some of them.
MOST = dict.fromkeys((b"cuCtxGetCurrent", b"cuCtxPushCurrent", b"cuCtxPopCurrent"), 6)
MOST |= {b"cuThreadExchangeStreamCaptureMode": 6, b"cuEventQuery": 2, b"cuStreamQuery": 2}
made = 0
for name, count in calls.items():
    for number in range(0, count, max(1, -(-count // MOST.get(name, count or 1)))):
        soft.softcuda_interrupt(name, ctypes.c_uint64(number))
        error_of_interrupted(scenario) or error_of_interrupted(settle)
        soft.softcuda_clear_faults()
        made += 1
        settle()
        check_statistics(name, number)
scenario()
settle()
rest = live()
print(made > 100, {name: count for name, count in rest.items() if name != "contexts"})
"""
    lines = lines_of(CATCH + BEGIN + program, PYTORCH_ALLOC_CONF=settings)
    assert lines == ["True {'device': 1, 'graphs': 1, 'graph_execs': 1, 'modules': 3}"]


def test_device_that_is_lost_midway_fails_the_program_once_and_does_not_keep_it():
    program = """
names = "cuMemAlloc cuMemHostAlloc cuMemcpyAsync cuMemsetD8Async cuLaunchKernel cuEventRecord cuEventQuery"
names += " cuStreamWaitEvent cuStreamQuery cuStreamBeginCapture cuStreamEndCapture cuGraphInstantiateWithFlags"
names += " cuGraphLaunch cuCtxSynchronize cuCtxPushCurrent cuEventElapsedTime"
for name in names.split():
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, name
        continue
    kept = forebay.ones(10, device="cuda"), forebay.ones(10, device="cuda:1"), forebay.empty(10, pin_memory=True)
    soft.softcuda_fail(name.encode(), ctypes.c_uint64(0), LOST, 1)
    error, said = error_of(scenario)
    case = name, error, said
    first = error.__context__ if getattr(error, "code", None) == 901 else error
    assert type(first) is DeviceError and first.code == LOST, case
    assert first.__notes__[-1].endswith("(700); the device accepts no more work in this process"), case
    for index in range(2):
        assert open_device(Device("cuda", index)).allocator.check_invariants() is None, case
    for index in range(2):  # the other GPU shares the process's fate
        assert error_of(lambda: cuda.synchronize(index))[0].code == LOST, case
    assert all(text.startswith("pinned memory could not be freed: CUDA error: an illegal") for text in said), case
    assert len(said) <= 1, case
    sys.exit(0)  # with live tensors
print("end")
"""
    assert output_of(program) == ["end"]


def test_forked_child_has_no_device_and_calls_no_driver():
    program = """
scenario()
kept, side, event = forebay.ones(10, device="cuda"), cuda.Stream(), cuda.Event()
pinned, graph = forebay.ones(10, pin_memory=True), cuda.CUDAGraph()
with cuda.graph(graph):
    kept.fill_(2)
if not (child := os.fork()):
    before = soft.softcuda_calls(b"")
    uses = [lambda: forebay.zeros(3, device="cuda"), cuda.synchronize, kept.cpu, side.synchronize, graph.replay]
    uses += [lambda: event.record(side), lambda: cuda.Stream(), lambda: kept.fill_(1)]
    errors = [error_of(use) for use in uses]
    assert all(isinstance(error, RuntimeError) and "fork" in str(error) and not said for error, said in errors), errors
    print(pinned.tolist() == [1] * 10)
    del kept, side, event, graph, pinned, uses
    gc.collect()
    print(soft.softcuda_calls(b"") - before, flush=True)
    sys.exit(0)
print(os.waitpid(child, 0)[1])
graph.replay()
print(kept[0].item())
del kept, graph, pinned
scenario()
settle()
check_statistics()
"""
    assert output_of(program) == ["True", "0", "0", "2.0"]


EXITS = {
    "tensor": "kept.me = kept",
    "fills": "[kept.fill_(number) for number in range(50)]",
    "pinned copies": """
pinned = forebay.empty(1000, pin_memory=True)
[pinned.copy_(kept, non_blocking=True) for _ in range(20)]
""",
    "streams": """
with cuda.stream(side):
    drawn = [forebay.rand(1000, device="cuda") for _ in range(20)]
cuda.default_stream().wait_stream(side)
drawn.pop().record_stream(cuda.default_stream())
""",
    "graph": """
with cuda.graph(graph):
    kept.zero_()
[graph.replay() for _ in range(20)]
""",
    "capture": "side.__enter__(), graph.capture_begin(), kept.zero_()",
    "host function": "side.queue.call(lambda: print('called', flush=True))",
    "pool": """
with cuda.use_mem_pool(cuda.MemPool()):
    more = forebay.ones(9, device="cuda"), forebay.ones(9, device="cuda:1")
""",
    "thread": "threading.Thread(target=lambda: [forebay.ones(1000, device='cuda') for _ in range(50)]).start()",
}


def test_exit_with_queued_work_and_live_tensors_is_silent():
    program = f"""
for name, source in {EXITS!r}.items():
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, name
        continue
    kept, side, graph = forebay.ones(1000, device="cuda"), cuda.Stream(), cuda.CUDAGraph()
    forebay.rand(1, device="cuda"), cuda.synchronize()  # the kernel is compiled
    soft.softcuda_set_latency(ctypes.c_int64(2_000))
    exec(source)
    sys.exit(0)
"""
    assert output_of(program) == ["called"]


def test_exit_does_not_wait_for_a_stream_that_never_continues():
    program = """
import time
from forebay.runtime.lifecycle import exit_and_fork
exit_and_fork.EXIT_SECONDS = 0.5
kept, gate = forebay.ones(10, device="cuda"), threading.Event()
cuda.default_stream().queue.call(gate.wait)
kept.fill_(3)
"""
    done = run(BEGIN + program)
    assert done.returncode == 0, done.stderr
    expected = "sys:1: ForebayWarning: work of 1 queue was not done 0.5 s after the program's end, and was dropped: "
    assert done.stderr == f"{expected}synchronize before exiting\n"
